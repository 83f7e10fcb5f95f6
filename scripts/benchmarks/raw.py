"""Time the tokenizer without a pipeline, the upper bound for any pipeline, and print the result as JSON.

    python -m scripts.benchmarks.raw FOLDER_OF_PARQUET TOKENIZER_FOLDER   ->   {"encode_seconds": ..., ...}

Times `encode_batch_fast` on lists of 1,000 Python strings, on all cores, and drops the results. Reading the Parquet
files and making the strings is not timed, though a pipeline has to do it.
"""

import json
import pathlib
import sys
import time
from collections.abc import Iterator

import pyarrow.parquet as pq
from tokenizers import Tokenizer

ROWS_PER_BATCH = 1_000


def main() -> None:
    folder, tokenizer_folder = map(pathlib.Path, sys.argv[1:])
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    tokenizer.encode_batch_fast(["The first call starts the threads."] * 8)
    encode_seconds, rows = 0.0, 0
    for texts in _batches(folder):
        started = time.perf_counter()
        tokenizer.encode_batch_fast(texts)
        encode_seconds += time.perf_counter() - started
        rows += len(texts)
    json.dump({"encode_seconds": encode_seconds, "rows": rows}, sys.stdout)


def _batches(folder: pathlib.Path) -> Iterator[list[str]]:
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(ROWS_PER_BATCH, columns=["text"]):
            yield batch["text"].to_pylist()


if __name__ == "__main__":
    main()
