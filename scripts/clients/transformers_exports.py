"""Compare exports of `train-tpu` in transformers with Keras (logits) and with `predict` (greedy texts).

transformers_exports.py WORK           with PyTorch: compare with logits.npz in WORK/exports/TASK
transformers_exports.py WORK write     in this project's environment: train, export, and write those

The GPT-2 is trained with a tokenizer that has [SEP] but no EOS, so its texts end with [SEP].
"""

import json
import pathlib
import sys
from typing import Any

import numpy as np

from scripts.clients.expected import WORK, run

CLASSES = {
    "classify": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
    "mlm": "AutoModelForMaskedLM",
    "clm": "AutoModelForCausalLM",
}
HOME = pathlib.Path(WORK, "exports")
REVIEWS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "reviews" / "train.jsonl"
NEW = 12  # tokens to generate
_DECODER = ("input_ids", "attention_mask")
_TOKENIZER = ("--tokenizer", f"{WORK}/tokenizer", "--max-length", "64")
_TRAIN = ("-m", "pipelines.train.cli")


def write() -> None:
    """Train a tiny model for each task, export it, and save Keras' logits and the texts of `train-tpu predict`."""
    from pipelines.train import model_files
    from pipelines.train.predict import loading
    from tfrecord_io import random_access

    for task in CLASSES:
        data, trained, output = f"{WORK}/pad", HOME / f"{task}-trained", HOME / task
        if task == "tokens":
            data = f"{WORK}/tokens"
            run("-m", "prep_tfrecords", "build", "examples/tags", "--output", data, "--layout", "tokens", *_TOKENIZER)
        options = ["--data", data, "--task", task, "--tpu", "none", "--backend", "jax"]
        options += ["--model", "gpt2-tiny", "--learning-rate", "1e-3"] if task == "clm" else ["--model", "bert-tiny"]
        options += ["--pooling", "first"] * (task == "classify")  # as the class of transformers does
        steps = "150" if task == "clm" else "3"
        run(*_TRAIN, *options, "--steps", steps, "--model-dir", str(trained))
        run(*_TRAIN, "export", "--model", str(trained), "--format", "transformers", "--output", str(output))
        rows = random_access.open(data)["train"].batch(list(range(16)))
        ids = rows["input_ids"].astype("int32")
        inputs = {"input_ids": ids, "attention_mask": (ids > 0).astype("int32"), "token_type_ids": np.zeros_like(ids)}
        if task == "mlm":
            inputs["masked_positions"] = np.tile(np.arange(ids.shape[1], dtype="int32"), (len(ids), 1))
        model = loading.load_model(str(trained), model_files.read(str(trained)), build=None).model
        named = model.input if isinstance(model.input, dict) else {}
        logits = model({name: inputs[name] for name in named}, training=False)
        stored: dict[str, Any] = {**inputs, "logits": np.asarray(logits)}
        np.savez(output / "logits.npz", **stored)
    (HOME / "prompts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in _prompts()))
    data = f"{WORK}/prompts"
    run("-m", "prep_tfrecords", "build", str(HOME / "prompts.jsonl"), "--output", data, "--layout", "pad", *_TOKENIZER)
    where = ["--model", str(HOME / "clm-trained"), "--data", data, "--split", "train", "--tpu", "none"]
    run(*_TRAIN, "predict", *where, "--generate", str(NEW), "--output", str(HOME / "generated.jsonl"))


def _prompts() -> list[str]:
    texts = [json.loads(line)["text"] for line in REVIEWS.open(encoding="utf-8")][:20]
    return [" ".join(text.split()[: 2 + number]) for number, text in enumerate(texts)]


def compare() -> None:
    """Exit with an error for the first task with other logits, weights or generated texts in transformers."""
    import torch
    import transformers

    for task, name in CLASSES.items():
        kind = getattr(transformers, name)
        model, loaded = kind.from_pretrained(HOME / task, output_loading_info=True)
        if wrong := {key: names for key, names in loaded.items() if names}:
            sys.exit(f"{task}: {wrong}")
        stored = dict(np.load(HOME / task / "logits.npz"))
        expected, _ = stored.pop("logits"), stored.pop("masked_positions", None)
        names = _DECODER if task == "clm" else tuple(stored)
        inputs = {key: torch.from_numpy(stored[key]).long() for key in names}
        is_token = stored["attention_mask"] > 0 if expected.ndim == 3 else slice(None)
        with torch.no_grad():
            logits = model.eval()(**inputs).logits.numpy()
            texts = _generated(model) if task == "clm" else ""
            exact = model.double()(**inputs).logits.numpy()
        pairs = ((expected, logits), (expected, exact), (logits, exact))
        apart, ours, theirs = (float(np.abs(a - b)[is_token].max()) for a, b in pairs)
        print(f"{task}: logits {apart:.1e} apart, from float64 {ours:.1e} and PyTorch's {theirs:.1e}{texts}")
        if apart > 5e-6:  # several times the rounding of float32
            sys.exit(f"{task}: logits {apart:.1e} apart")


def _generated(model: Any) -> str:
    """Compare greedily generated texts with the output of `train-tpu predict`; return a message with their number."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(HOME / "clm")
    rows = [json.loads(line) for line in (HOME / "generated.jsonl").open(encoding="utf-8")]
    ended = 0
    for row, prompt in zip(rows, _prompts(), strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"][:, :-1]
        generated = model.generate(ids, max_new_tokens=NEW, do_sample=False)[0, ids.shape[1] :]
        ended += len(generated) < NEW
        text = tokenizer.decode(generated, skip_special_tokens=True)
        if text != row["generated"]:
            sys.exit(f"{prompt!r}: {text!r}, predict writes {row['generated']!r}")
    assert 0 < ended < len(rows), ended
    return f", {len(rows)} greedy texts equal, {ended} of them end before {NEW} tokens"


if __name__ == "__main__":
    write() if sys.argv[2:] else compare()
