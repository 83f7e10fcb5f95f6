"""Megatron-LM's IndexedDataset of a Megatron export: every document, with EOS at its end."""

import glob
import warnings

import datasets

from scripts.clients.expected import WORK

warnings.simplefilter("ignore")  # about its GPU packages
from megatron.core.datasets.indexed_dataset import IndexedDataset  # noqa: E402

expected = datasets.load_dataset(f"{WORK}/concat-documents", cache_dir=f"{WORK}/hf-cache")["train"]["input_ids"]
files = [IndexedDataset(path.removesuffix(".idx")) for path in sorted(glob.glob(f"{WORK}/concat-megatron/*.idx"))]
found = [file[at].tolist() for file in files for at in range(len(file))]
assert found == list(expected)
print(f"{len(found)} documents of {len(files)} files")
