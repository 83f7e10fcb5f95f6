"""Exports of `train-tpu` in transformers: classify, tokens and mlm give the logits of the Keras model.

transformers_exports.py WORK           in an environment with PyTorch: compare with logits.npz in WORK/exports/TASK
transformers_exports.py WORK write     in this project's: train, export, and write those
"""

import pathlib
import subprocess
import sys
from typing import Any

import numpy as np

CLASSES = {
    "classify": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
    "mlm": "AutoModelForMaskedLM",
}
HOME = pathlib.Path(sys.argv[1], "exports")


def write() -> None:
    """Train a tiny BERT for each task, export it, and compute its logits by Keras."""
    from pipelines.train import model_files
    from pipelines.train.predict import loading
    from tfrecord_io import random_access

    for task in CLASSES:
        data, trained, output = f"{sys.argv[1]}/pad", HOME / f"{task}-trained", HOME / task
        if task == "tokens":
            data = f"{sys.argv[1]}/tokens"
            _run("-m", "prep_tfrecords", "build", "examples/tags", "--output", data, "--layout", "tokens", *_TOKENIZER)
        options = ["--data", data, "--task", task, "--model", "bert-tiny", "--tpu", "none", "--backend", "jax"]
        options += ["--pooling", "first"] * (task == "classify")  # as the class of transformers does
        _run(*_TRAIN, *options, "--steps", "3", "--model-dir", str(trained))
        _run(*_TRAIN, "export", "--model", str(trained), "--format", "transformers", "--output", str(output))
        rows = random_access.open(data)["train"].batch(list(range(16)))
        ids = rows["input_ids"].astype("int32")
        given = {"input_ids": ids, "attention_mask": (ids > 0).astype("int32"), "token_type_ids": np.zeros_like(ids)}
        if task == "mlm":
            given["masked_positions"] = np.tile(np.arange(ids.shape[1], dtype="int32"), (len(ids), 1))
        model = loading.load_model(str(trained), model_files.read(str(trained)), build=None).model
        named = model.input if isinstance(model.input, dict) else {}
        logits = model({name: given[name] for name in named}, training=False)
        stored: dict[str, Any] = {**given, "logits": np.asarray(logits)}
        np.savez(output / "logits.npz", **stored)


_TOKENIZER = ("--tokenizer", f"{sys.argv[1]}/tokenizer", "--max-length", "64")


_TRAIN = ("scripts/train_tpu.py",)


def _run(*words: str) -> None:
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stderr[-2000:])


def compare() -> None:
    """Exit with the first task that has other logits, or lacks weights."""
    import torch
    import transformers

    for task, name in CLASSES.items():
        kind = getattr(transformers, name)
        model, found = kind.from_pretrained(HOME / task, output_loading_info=True)
        stored = dict(np.load(HOME / task / "logits.npz"))
        expected, _ = stored.pop("logits"), stored.pop("masked_positions", None)
        given = {key: torch.from_numpy(each).long() for key, each in stored.items()}
        with torch.no_grad():
            logits = model.eval()(**given).logits.numpy()
        seen = stored["attention_mask"] > 0 if logits.ndim == 3 else slice(None)
        apart = float(np.abs(logits - expected)[seen].max())
        if apart > 2e-6 or found["missing_keys"]:
            sys.exit(f"{task}: logits {apart:.1e} apart, missing weights {found['missing_keys']}")
        print(f"{task}: logits {apart:.1e} apart")


if __name__ == "__main__":
    write() if sys.argv[2:] else compare()
