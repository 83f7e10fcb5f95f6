"""Check that Axolotl's `sample_packing` keeps each document's tokens, labels and positions."""

import sys

import datasets
import numpy as np
from axolotl.utils.collators.batching import V2BatchSamplerDataCollatorForSeq2Seq
from axolotl.utils.data.utils import handle_long_seq_in_dataset
from axolotl.utils.data.wrappers import get_dataset_wrapper
from axolotl.utils.dict import DictDefault
from axolotl.utils.samplers import MultipackBatchSampler
from axolotl.utils.trainer import process_datasets_for_packing
from transformers import AutoTokenizer

WORK, LENGTH = sys.argv[1], 64


def check(name: str) -> None:
    """Compare batches of the export `name` of folder WORK with the documents that the sampler put into them."""
    tokenizer = AutoTokenizer.from_pretrained(f"{WORK}/tokenizer")
    config = DictDefault(sequence_len=LENGTH, sample_packing=True, min_sample_len=2)
    data = datasets.load_dataset(f"{WORK}/{name}-axolotl", split="train", cache_dir=f"{WORK}/hf-cache-axolotl")
    data, _ = get_dataset_wrapper(DictDefault(type=None), tokenizer, config, None, data, None)
    rows, _ = process_datasets_for_packing(config, handle_long_seq_in_dataset(data, LENGTH, config), None)
    options = {"batch_max_len": LENGTH, "bin_size": LENGTH, "sequential": True, "drop_last": False}
    sampler = MultipackBatchSampler(range(len(rows)), batch_size=1, lengths=np.array(rows["length"]), **options)
    collate = V2BatchSamplerDataCollatorForSeq2Seq(tokenizer)
    packed = []
    for ((bin_),) in sampler:
        batch, documents = collate([[rows[at] for at in bin_]]), [rows[at] for at in bin_]
        for column in ("input_ids", "labels"):
            assert batch[column][0].tolist() == [value for row in documents for value in row[column]], column
        places = [place for row in documents for place in range(row["length"])]
        assert batch["position_ids"][0].tolist() == places
        packed += bin_
    assert sorted(packed) == list(range(len(rows)))
    print(f"{name}: {len(packed)} documents in {len(sampler)} rows")


if __name__ == "__main__":
    check("pad")
    check("pack")
