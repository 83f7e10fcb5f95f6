"""Prepare a dataset with a typical hand-written script, the benchmark's rival; it also runs without the benchmark.

    python -m scripts.benchmarks.common FOLDER_OF_PARQUET OUT TOKENIZER_FOLDER pad|concat MAX_LENGTH

    load_dataset ─► map(tokenize, num_proc=cores) ─► [concat: map(group_texts)] ─► for row: Example ─► TFRecordWriter

Like the well-known example scripts, it uses batched maps with one process per core. It is not slower than necessary: it
reads rows in batches, keeps only columns that go into the shards, and doesn't shuffle.
"""

import itertools
import os
import pathlib
import sys
from typing import Any

# There is one process per core; without this, each would also start one thread per core.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import datasets
import tensorflow as tf
from transformers import AutoTokenizer

SHARD_BYTES = 100_000_000
ROWS_PER_BATCH = 1_000
Columns = dict[str, list[Any]]


def tokenized(data: str, tokenizer: Any, layout: str, length: int) -> datasets.Dataset:
    """Tokenize the texts of a folder of Parquet files; return rows of lists of ints, the values of the records."""
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

    dataset = datasets.load_dataset("parquet", data_files=f"{data}/*.parquet", split="train")
    options: Any = {"batched": True, "num_proc": len(os.sched_getaffinity(0))}
    if layout == "pad":
        return dataset.map(pad, remove_columns=dataset.column_names, **options)
    return dataset.map(tokenize, remove_columns=dataset.column_names, **options).map(group_texts, **options)


def record(row: dict[str, Any]) -> bytes:
    """Return a row as a serialized `tf.train.Example`."""
    features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=value if isinstance(value, list) else [value]))
        for name, value in row.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(dataset: datasets.Dataset, output: pathlib.Path) -> None:
    """Write the rows to TFRecord files of about 100 MB in the new folder `output`."""
    output.mkdir(parents=True)
    shards = -(-len(dataset) * len(record(dataset[0])) // SHARD_BYTES)
    for shard in range(shards):
        with tf.io.TFRecordWriter(f"{output}/data-{shard:05d}.tfrecord") as writer:
            for batch in dataset.shard(shards, shard, contiguous=True).iter(ROWS_PER_BATCH):
                for values in zip(*batch.values(), strict=True):
                    writer.write(record(dict(zip(batch, values, strict=True))))


if __name__ == "__main__":
    data, output, tokenizer, layout, length = sys.argv[1:]
    write(tokenized(data, AutoTokenizer.from_pretrained(tokenizer), layout, int(length)), pathlib.Path(output))
