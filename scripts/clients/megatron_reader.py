"""Read a Megatron export with Megatron-LM's IndexedDataset, and compare its bytes with IndexedDatasetBuilder's."""

import glob
import pathlib
import tempfile
import warnings

import datasets
import numpy as np
import torch

from scripts.clients.expected import WORK

warnings.simplefilter("ignore")  # about its GPU packages
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder  # noqa: E402

expected = datasets.load_dataset(f"{WORK}/concat-documents", cache_dir=f"{WORK}/hf-cache")["train"]["input_ids"]
paths = sorted(glob.glob(f"{WORK}/concat-megatron/*.idx"))
files = [IndexedDataset(path.removesuffix(".idx")) for path in paths]
documents = [file[at].tolist() for file in files for at in range(len(file))]
assert documents == list(expected)
for path, file in zip(paths, files, strict=True):
    with tempfile.TemporaryDirectory() as folder:
        builder = IndexedDatasetBuilder(f"{folder}/built.bin", dtype=file.index.dtype)
        for at in range(len(file)):
            builder.add_document(torch.from_numpy(np.asarray(file[at]).astype("int32")), [len(file[at])])
        builder.finalize(f"{folder}/built.idx")
        for suffix in (".bin", ".idx"):
            theirs = pathlib.Path(folder, f"built{suffix}").read_bytes()
            assert theirs == pathlib.Path(path).with_suffix(suffix).read_bytes(), f"{path}: other bytes in {suffix}"
print(f"the bytes of IndexedDatasetBuilder; {len(documents)} documents of {len(files)} files")
