"""Compare 20 losses on pairs of answers: `train-tpu --task dpo` and `--task reward` against TRL's trainers.

Both begin with the same small GPT-2 without dropout and take the batches of our reader, in float32. PyTorch and
TensorFlow don't share a process.
"""

import json
import pathlib
import shutil
import sys
from typing import Any

from scripts.clients.expected import WORK, run

HERE = pathlib.Path(WORK, "preferences")
STEPS, BATCH, LENGTH, RATE = 20, 4, 32, 1e-3  # as in torch_trainers


def batches() -> None:
    """Print the features of the first 20 training batches as JSON lines."""
    from tfrecord_io import reader

    data = reader.open(str(HERE / "data")).dataset("train", global_batch_size=BATCH, seed=0, training=True)
    for batch in data.take(STEPS).as_numpy_iterator():
        print(json.dumps({name: values.tolist() for name, values in batch.items()}))


def _ran(*words: str) -> list[Any]:
    return [json.loads(line) for line in run(*words).splitlines() if line.startswith("{")]


def _build(tokenizer: Any) -> None:
    import datasets

    from prep_tfrecords import build

    columns: dict[str, list[Any]] = {
        "prompt": [f"Film {row} was" for row in range(40)],
        "chosen": [f" good, {row} times." for row in range(40)],
        "rejected": [" bad" * (row % 3 + 1) for row in range(40)],
        "margin": [row % 2 / 2 for row in range(40)],
    }
    options: dict[str, Any] = {"layout": "preference", "max_length": LENGTH, "keep_column": "margin"}
    build(datasets.Dataset.from_dict(columns), output=HERE / "data", tokenizer=tokenizer, overwrite=True, **options)


def _rows(kind: str) -> list[dict[str, Any]]:
    """Return the rows of our batches in the form that TRL's collators for "dpo" or "reward" take."""
    rows: list[dict[str, Any]] = []
    for batch in _ran(__file__, str(WORK), "batches"):
        for at in range(BATCH):
            row = {"margin": batch["margin"][at]} if kind == "reward" else {}
            for side in ("chosen", "rejected"):
                ids, mask, learned = (
                    batch[f"{side}_{name}"][at] for name in ("input_ids", "attention_mask", "loss_mask")
                )
                whole, count = ids[: sum(mask)], sum(learned)
                row |= {"prompt_ids": whole[:-count]} if kind == "dpo" else {}
                row[f"{side}_ids"] = whole[-count:] if kind == "dpo" else whole
            rows.append(row)
    return rows


def theirs(kind: str, tokenizer: Any) -> list[float]:
    """Train with TRL, and return the unrounded loss of each step. `kind`: "dpo" or "reward"."""
    import datasets
    import transformers
    import trl

    from scripts.clients.torch_trainers import QUIET, SETTINGS

    trainer, config = (trl.DPOTrainer, trl.DPOConfig) if kind == "dpo" else (trl.RewardTrainer, trl.RewardConfig)
    load = transformers.AutoModelForCausalLM if kind == "dpo" else transformers.AutoModelForSequenceClassification
    losses: list[float] = []

    class Recording(trainer):  # type: ignore[misc, valid-type]
        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

        def compute_loss(self, *arguments: Any, **options: Any) -> Any:
            loss = super().compute_loss(*arguments, **options)
            losses.append(loss.item())
            return loss

    settings = config(
        output_dir=str(HERE / "out"),
        max_length=None,
        lr_scheduler_type="constant",
        weight_decay=0.1,
        max_grad_norm=1e9,
        train_sampling_strategy="sequential",
        gradient_checkpointing=False,
        **SETTINGS,
        **QUIET,
    )
    models = [load.from_pretrained(str(HERE / kind)) for _ in range(1 + (kind == "dpo"))]
    rows = datasets.Dataset.from_list(_rows(kind))
    recording = Recording(*models, args=settings, train_dataset=rows, processing_class=tokenizer)
    recording.remove_callback(transformers.PrinterCallback)
    recording.train()
    return losses


def ours(kind: str) -> list[float]:
    """Train with `train-tpu`, and return the loss of each step. `kind`: "dpo" or "reward"."""
    options = {"data": HERE / "data", "task": kind, "model": HERE / kind, "steps": STEPS, "global-batch-size": BATCH}
    options |= {"learning-rate": RATE, "schedule": "constant", "weight-decay": 0.1, "clip-norm": 1e9, "tpu": "none"}
    options |= {"model-dir": HERE / f"{kind}-trained", "log-every": 1}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [line["loss"] for line in _ran("-m", "pipelines.train.cli", *words, "--json") if "learning_rate" in line]


def main() -> None:
    """Print the largest difference of the losses of each task; exit with an error if it exceeds rounding."""
    import transformers

    from scripts.clients.trl_templates import toy_tokenizer

    tokenizer = toy_tokenizer("")
    tokenizer.pad_token = "<s>"  # with </s>, transformers takes the token before it for a row's last one
    _build(tokenizer)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "pad_token_id": tokenizer.pad_token_id}
    sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "num_labels": 1}
    for kind, name in (("dpo", "GPT2LMHeadModel"), ("reward", "GPT2ForSequenceClassification")):
        shutil.rmtree(HERE / f"{kind}-trained", ignore_errors=True)
        transformers.set_seed(1)
        config = transformers.GPT2Config(vocab_size=len(tokenizer), **sizes)
        getattr(transformers, name)(config).save_pretrained(HERE / kind)
        pair = ours(kind), theirs(kind, tokenizer)
        apart = max(abs(a - b) for a, b in zip(*pair, strict=True))
        print(f"{kind}: {STEPS} losses {apart:.1e} apart, {pair[0][0]:.3f} to {pair[0][-1]:.3f}")
        if not (apart < 1e-5 and pair[0][-1] < 0.5):
            sys.exit(f"{kind}: {pair}")


if __name__ == "__main__":
    batches() if sys.argv[2:] == ["batches"] else main()
