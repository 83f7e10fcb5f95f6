"""Compare ids and masks of `--layout preference` with TRL's `DPOTrainer._prepare_dataset` and its collator.

ids         200 pairs of texts, and 200 of conversations with each of eight templates
masks       DataCollatorForPreference with keep_start and keep_end, of whole rows and cut to the median length
"""

import collections
import datetime
import json
import pathlib
import shutil
import types
from typing import Any

import datasets
import numpy as np
import transformers
import trl
from jinja2 import TemplateError
from trl.trainer.dpo_trainer import DataCollatorForPreference

from prep_tfrecords import build
from scripts.clients.expected import WORK
from scripts.clients.trl_templates import CONVERSATIONS, TEMPLATES, toy_tokenizer
from tfrecord_io import random_access

NAMES = ("llama3", "qwen2_5", "qwen3", "gemma3", "gemma4_v5", "phi3", "glm4moe", "gptoss")
PAIRS, LONGEST = 200, 1 << 14
HERE = pathlib.Path(WORK, "preferences")
Row = dict[str, Any]


def conversations() -> list[Row]:
    """Return 200 pairs of conversations: one turn and many, a system prompt, tools and thoughts."""
    pairs: list[Row] = []
    for said, tools in CONVERSATIONS:
        for at in range(1, len(said)):
            if said[at - 1]["role"] != "user" or said[at]["role"] != "assistant" or not any(said[at].values()):
                continue
            rejected: list[Any] = [{"role": "assistant", "content": "I do not know."}]
            rejected.append({**said[at], "content": f"{said[at].get('content') or ''} Or not?"})
            pair = {"prompt": said[:at], "chosen": said[at:], "tools": tools}
            pairs += [{**pair, "rejected": [answer]} for answer in rejected]
    step = len(pairs) / PAIRS
    return [pairs[int(number * step)] for number in range(PAIRS)]


def texts() -> list[Row]:
    """Return 200 pairs of texts. Some answers end with EOS, or begin with letters that merge with the prompt's end."""
    prompts = ("The sky is", "Water is ", "", "Grüße an", "x </s>", "a\n")
    answers = (" blue.", "wet.", " a fish</s>", "é", "  ", "\n\nb")
    return [
        {"prompt": prompt, "chosen": answers[at % 6], "rejected": answers[(at + 1 + at // 36) % 6]}
        for at, prompt in enumerate(prompts * 34)
    ][:PAIRS]


def theirs(row: Row, tokenizer: Any) -> Row | None:
    """Return a row with the token ids that TRL's DPOTrainer makes, or None if the template refuses it."""
    settings = types.SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    rows = datasets.IterableDataset.from_generator(lambda: iter([dict(row)]))
    fake = types.SimpleNamespace(_tokenizer=tokenizer)
    try:
        prepared = trl.DPOTrainer._prepare_dataset(fake, rows, tokenizer, settings, "train")
        return next(iter(prepared))
    except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None


def built(
    name: str, rows: list[Row], tokenizer: Any, *, length: int, side: Any
) -> tuple[dict[int, Row], dict[int, str]]:
    """Build a dataset from pairs. Return its records, and the reasons why rows are rejected, by row number."""
    output = HERE / name
    shutil.rmtree(output, ignore_errors=True)
    numbered = datasets.Dataset.from_list([{**row, "number": at} for at, row in enumerate(rows)])
    options: dict[str, Any] = {"layout": "preference", "max_length": length, "truncation_side": side, "shuffle": False}
    if not isinstance(rows[0]["prompt"], str):
        options["chat_date"] = datetime.datetime.now().date().isoformat()
    build(numbered, output=output, tokenizer=tokenizer, keep_column="number", max_error_rate=1, **options)
    lines = [json.loads(line) for path in (output / "rejected").glob("*.jsonl") for line in path.open(encoding="utf-8")]
    records = random_access.open(output)["train"]
    return {int(record["number"]): record for record in records}, {line["row"]: line["reason"] for line in lines}


def check(name: str, rows: list[Row], known: list[Row | None], tokenizer: Any, *, length: int, mode: str) -> list[int]:
    """Build pairs, and compare them with TRL's rows (`known`); return the lengths of the equal rows.

    `length`: maximum number of tokens; `mode`: TRL's truncation_mode, "keep_start" or "keep_end".
    """
    side = {"keep_start": "right", "keep_end": "left"}[mode]
    ours, reasons = built(name, rows, tokenizer, length=length, side=side)
    collator = DataCollatorForPreference(tokenizer.pad_token_id, max_length=length, truncation_mode=mode)
    lengths = []
    for number, (row, expected) in enumerate(zip(rows, known, strict=True)):
        if number not in ours:
            # TRL leaves out prompts that fill the row, with keep_start.
            fills = expected is not None and mode == "keep_start" and len(expected["prompt_ids"]) >= length
            allowed = {"prompt_too_long"} if fills else {"answers_equal", "chosen_empty", "rejected_empty"}
            assert expected is None or reasons[number] in allowed, (name, mode, row, reasons[number])
            continue
        assert expected is not None, (name, mode, row)
        batch = {key: values.numpy() for key, values in collator([expected]).items()}
        for at, answer in enumerate(("chosen", "rejected")):
            size = int(batch["attention_mask"][at].sum())
            assert ours[number][f"{answer}_attention_mask"].sum() == size, (name, mode, row)
            for our_name, their_name in (("input_ids", "input_ids"), ("loss_mask", "completion_mask")):
                values, theirs = ours[number][f"{answer}_{our_name}"][:size], batch[their_name][at][:size]
                assert np.array_equal(values, theirs), (name, mode, row, answer, our_name)
        lengths.append(size)
    return lengths


def compare() -> None:
    """Compare pairs of texts, and pairs of conversations with each template; print the numbers of equal pairs."""
    counts: collections.Counter[str] = collections.Counter()
    for name in ("texts", *NAMES):
        template = "" if name == "texts" else (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
        rows, tokenizer = texts() if name == "texts" else conversations(), toy_tokenizer(template)
        known = [theirs(row, tokenizer) for row in rows]
        counts["refused by the template"] += known.count(None)
        lengths = check(name, rows, known, tokenizer, length=LONGEST, mode="keep_start")
        counts["equal"] += len(lengths)
        for mode in ("keep_start", "keep_end"):
            cut = check(name, rows, known, tokenizer, length=int(np.median(lengths)), mode=mode)
            counts[f"equal, cut with {mode}"] += len(cut)
    print(f"{PAIRS * (len(NAMES) + 1):,} pairs: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    compare()
