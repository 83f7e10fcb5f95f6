"""Prepare a dataset with a typical hand-written script, the benchmark's rival; it also runs without the benchmark.

    python -m scripts.benchmarks.common_script "DATA/*.parquet" OUT --tokenizer DIR --layout pad|concat

    load_dataset ─► map(tokenize, num_proc=cores) ─► [concat: map(group_texts)] ─► for row: Example ─► TFRecordWriter

Like the well-known example scripts, it uses batched maps with one process per core. It is not slower than necessary: it
reads rows in batches, keeps only columns that go into the shards, and doesn't shuffle.
"""

import argparse
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

SHARD_BYTES = 100_000_000
ROWS_PER_BATCH = 1_000
Columns = dict[str, list[Any]]


def main() -> None:
    options = _options()
    dataset = _tokenized(options)
    num_shards = _write(dataset, pathlib.Path(options.output))
    json.dump({"examples": len(dataset), "shards": num_shards}, sys.stdout)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("output")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--layout", choices=["pad", "concat"], required=True)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--num-proc", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def _tokenized(options: argparse.Namespace) -> Any:
    """Return a datasets.Dataset with the values of the records, as lists of ints."""
    # There is one process per core; without this, each would also start one thread per core.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import datasets
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    length = options.max_length
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    end = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id

    def pad(batch: Columns) -> Columns:
        rows = tokenizer(batch["text"], padding="max_length", truncation=True, max_length=length)
        return {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"], "label": batch["label"]}

    def tokenize(batch: Columns) -> Columns:
        # GPT-2's tokenizer adds no end token, so mark the end of each document here.
        ids = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return {"input_ids": [[*document, end] for document in ids]}

    def group_texts(batch: Columns) -> Columns:
        ids = list(itertools.chain.from_iterable(batch["input_ids"]))
        usable = len(ids) // length * length
        return {"input_ids": [ids[start : start + length] for start in range(0, usable, length)]}

    dataset = datasets.load_dataset("parquet", data_files=options.data, split="train")
    columns = dataset.column_names
    if options.layout == "pad":
        return dataset.map(pad, batched=True, num_proc=options.num_proc, remove_columns=columns)
    dataset = dataset.map(tokenize, batched=True, num_proc=options.num_proc, remove_columns=columns)
    return dataset.map(group_texts, batched=True, num_proc=options.num_proc)


def _write(dataset: Any, output: pathlib.Path) -> int:
    """Write shards of about 100 MB; return their number."""
    import tensorflow as tf

    output.mkdir(parents=True)
    shard, written, writer = -1, SHARD_BYTES, None
    for row in _rows(dataset):
        if written >= SHARD_BYTES:
            if writer is not None:
                writer.close()
            shard, written = shard + 1, 0
            writer = tf.io.TFRecordWriter(str(output / f"data-{shard:05d}.tfrecord"))
        feature = {
            name: tf.train.Feature(int64_list=tf.train.Int64List(value=value if isinstance(value, list) else [value]))
            for name, value in row.items()
        }
        record = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
        assert writer is not None
        writer.write(record)
        written += len(record)
    if writer is not None:
        writer.close()
    return shard + 1


def _rows(dataset: Any) -> Iterator[dict[str, Any]]:
    for batch in dataset.iter(ROWS_PER_BATCH):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


if __name__ == "__main__":
    main()
