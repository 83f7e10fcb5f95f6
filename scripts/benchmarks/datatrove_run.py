"""What datatrove does with the same rows: tokens of documents, each ended by EOS, in its own files. No TFRecords, no
rows of one length: the least that a peer can be asked for.

    python -m scripts.benchmarks.datatrove_run FOLDER_OF_PARQUET OUT TOKENIZER.json
"""

from __future__ import annotations

import json
import os
import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main() -> None:
    folder, output, tokenizer = sys.argv[1:]
    # As datatrove's own examples do it: one task and one process for each core, a tokenizer of one thread in each.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    cores = len(os.sched_getaffinity(0))
    steps = [
        ParquetReader(folder, text_key="text", id_key=None),
        DocumentTokenizer(output, tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", shuffle_documents=False),
    ]
    LocalPipelineExecutor(pipeline=steps, tasks=cores, workers=cores, logging_dir=f"{output}/logs").run()
    json.dump({"examples": 0}, sys.stdout)


if __name__ == "__main__":
    main()
