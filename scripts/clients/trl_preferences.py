"""TRL's DPOTrainer and RewardTrainer: pairs and masks of `--layout preference` against `DPOTrainer._prepare_dataset`.

ids         200 pairs of texts and conversations, with eight templates: the prompt's and both answers' ids
masks       those of DataCollatorForPreference, keep_start and keep_end, also with a short row length
losses      20 steps of DPO and of a reward model, on our Parquet export and on the rows themselves
"""

import datetime
import json
import pathlib
import shutil
import types
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import torch
import transformers
import trl
from jinja2 import TemplateError
from trl.trainer.dpo_trainer import DataCollatorForPreference

from prep_tfrecords import build
from scripts.clients.expected import WORK
from scripts.clients.trl_templates import CONVERSATIONS, TEMPLATES, toy_tokenizer
from tfrecord_io import random_access

NAMES = ("llama3", "qwen2_5", "qwen3", "gemma3", "gemma4_v5", "phi3", "glm4moe", "gptoss")
PAIRS, SHORT = 200, 96
HERE = pathlib.Path(WORK, "preferences")
Row = dict[str, Any]


def conversations() -> list[Row]:
    """Return pairs with one turn and many, a system prompt, tools and thoughts: two for each answer to a user."""
    found: list[Row] = []
    for said, tools in CONVERSATIONS:
        for at in range(1, len(said)):
            if said[at - 1]["role"] != "user" or said[at]["role"] != "assistant" or not any(said[at].values()):
                continue
            others: list[Any] = [{"role": "assistant", "content": "I do not know."}]
            others.append({**said[at], "content": f"{said[at].get('content') or ''} Or not?"})
            pair = {"prompt": said[:at], "chosen": said[at:], "tools": tools}
            found += [{**pair, "rejected": [other]} for other in others]
    step = len(found) / PAIRS
    return [found[int(number * step)] for number in range(PAIRS)]


def texts() -> list[Row]:
    """Return pairs of texts, with EOS at the end of some answers, and tokens that merge with the prompt's end."""
    prompts = ("The sky is", "Water is ", "", "Grüße an", "x </s>", "a\n")
    answers = (" blue.", "wet.", " a fish</s>", "é", "  ", "\n\nb")
    return [
        {"prompt": prompt, "chosen": answers[at % 6], "rejected": answers[(at + 1 + at // 36) % 6]}
        for at, prompt in enumerate(prompts * 34)
    ][:PAIRS]


def theirs(row: Row, tokenizer: Any, *, length: int | None) -> Row | None:
    """Return TRL's ids of a row; None if it leaves the row out, or the template refuses it."""
    settings = types.SimpleNamespace(dataset_num_proc=None, max_length=length, truncation_mode="keep_start")
    rows = datasets.IterableDataset.from_generator(lambda: iter([dict(row)]))
    fake = types.SimpleNamespace(_tokenizer=tokenizer)
    try:
        prepared = trl.DPOTrainer._prepare_dataset(fake, rows, tokenizer, settings, "train")
        return next(iter(prepared), None)
    except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None


def built(name: str, rows: list[Row], tokenizer: Any, *, length: int, side: Any) -> tuple[dict[int, Row], list[Row]]:
    """Return our records by row number, and the rejected rows."""
    output = HERE / name
    shutil.rmtree(output, ignore_errors=True)
    made = {"layout": "preference", "max_length": length, "truncation_side": side, "max_error_rate": 1}
    keep = {"keep_column": "number", "shuffle": False, "chat_date": datetime.datetime.now().date().isoformat()}
    numbered = datasets.Dataset.from_list([{**row, "number": at} for at, row in enumerate(rows)])
    if isinstance(rows[0]["prompt"], str):
        del keep["chat_date"]
    build(numbered, output=output, tokenizer=tokenizer, **made, **keep)
    lines = [line for path in (output / "rejected").glob("*.jsonl") for line in path.open(encoding="utf-8")]
    records = random_access.open(output)["train"]
    return {int(record["number"]): record for record in records}, [json.loads(line) for line in lines]


def check(name: str, rows: list[Row], tokenizer: Any, *, length: int, mode: str) -> tuple[int, int]:
    """Compare all rows with TRL's; return how many have equal ids and masks, and how many both leave out."""
    side = {"keep_start": "right", "keep_end": "left"}[mode]
    ours, rejected = built(name, rows, tokenizer, length=length, side=side)
    reasons = {line["row"]: f"{line['reason']} {line.get('detail', '')}" for line in rejected}
    collator = DataCollatorForPreference(tokenizer.pad_token_id, max_length=length, truncation_mode=mode)
    equal = out = 0
    for number, row in enumerate(rows):
        expected = theirs(row, tokenizer, length=length if mode == "keep_start" else None)
        if expected is None or number not in ours:
            is_no_pair = reasons.get(number, "").startswith(("answers_equal", "chosen_empty", "rejected_empty"))
            assert number not in ours, (name, mode, row)
            assert expected is None or is_no_pair, (name, mode, row, reasons[number])
            out += 1
            continue
        batch = {key: values.numpy() for key, values in collator([expected]).items()}
        for at, answer in enumerate(("chosen", "rejected")):
            record = ours[number]
            size = int(batch["attention_mask"][at].sum())
            for ours_name, their_name in (("input_ids", "input_ids"), ("loss_mask", "completion_mask")):
                found, wanted = record[f"{answer}_{ours_name}"], batch[their_name][at][:size]
                assert np.array_equal(found[:size], wanted), (name, mode, row, answer, ours_name)
            assert record[f"{answer}_attention_mask"].sum() == size, (name, mode, row)
        equal += 1
    return equal, out


def checks(length: int, mode: str) -> Iterator[tuple[int, int]]:
    """Compare texts, and conversations with each template."""
    yield check("texts", texts(), toy_tokenizer(""), length=length, mode=mode)
    for name in NAMES:
        tokenizer = toy_tokenizer((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))
        yield check(name, conversations(), tokenizer, length=length, mode=mode)


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    for length, mode in ((1 << 15, "keep_start"), (SHORT, "keep_start"), (SHORT, "keep_end")):
        equal, out = map(sum, zip(*checks(length, mode), strict=True))
        print(f"{equal:,} pairs have equal ids and masks, {mode} with {length:,} tokens; {out} are left out by both")
