"""Time the tokenizer without a pipeline, the upper bound for any pipeline, and print the seconds.

    python -m scripts.benchmarks.raw FOLDER_OF_PARQUET TOKENIZER_FOLDER

Times `encode_batch_fast` on lists of 1,000 Python strings, on all cores, and drops the results. Reading the Parquet
files and making the strings is not timed, though a pipeline has to do it.
"""

import pathlib
import sys
import time

import pyarrow.parquet as pq
from tokenizers import Tokenizer

folder, tokenizer_folder = sys.argv[1:]
tokenizer = Tokenizer.from_file(f"{tokenizer_folder}/tokenizer.json")
tokenizer.encode_batch_fast(["The first call starts the threads."] * 8)
seconds = 0.0
for path in sorted(pathlib.Path(folder).glob("*.parquet")):
    for batch in pq.ParquetFile(path).iter_batches(1_000, columns=["text"]):
        texts = batch["text"].to_pylist()
        started = time.perf_counter()
        tokenizer.encode_batch_fast(texts)
        seconds += time.perf_counter() - started
print(seconds)
