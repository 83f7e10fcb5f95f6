"""Read an export with Megatron-Bridge's reader of packed Parquet files: its batches learn the tokens that ours learn.

The package needs GPU libraries to import, so packages around the reader, and modules that it never calls, are empty.
"""

import sys
import types
from pathlib import Path
from unittest import mock

import numpy as np

from scripts.clients.expected import WORK, documents

bridge = next(Path(path) for path in sys.path if (Path(path) / "megatron/bridge").is_dir()) / "megatron/bridge"
for name in ("bridge", "bridge.data", "bridge.data.packing", "bridge.data.datasets"):
    package = types.ModuleType(f"megatron.{name}")
    package.__path__ = [str(bridge.parent / name.replace(".", "/"))]
    sys.modules[package.__name__] = package
for name in ("data.datasets.utils", "data.sft_processing", "data.token_utils", "training.tokenizers.tokenizer"):
    sys.modules[f"megatron.bridge.{name}"] = mock.MagicMock()
from megatron.bridge.data.packing.parquet import GPTSFTPackedParquetDataset  # noqa: E402

EOS = -1  # 0.6 learns no successor of an EOS; without one, the mask is the file's
dataset = GPTSFTPackedParquetDataset(
    f"{WORK}/chat-megatron-bridge/*-train-*.idx.parquet",
    types.SimpleNamespace(eos_id=EOS),
    max_seq_length=128,
    answer_only_loss=True,
    prompt_template="{input} {answer}",  # it and the next are not used for packed rows
    truncation_field="input",
)
expected = iter(documents("chat"))
num_documents = num_learned = 0
for at in range(len(dataset)):
    row = dataset[at]
    GPTSFTPackedParquetDataset.validate_row(at, row["input_ids"], row["loss_mask"], row["seq_boundaries"][:-1])
    batch, ends = dataset.collate_fn([row]), np.cumsum(np.diff(row["seq_boundaries"]) - 1)
    parts = (np.split(batch[name][0].numpy(), ends)[:-1] for name in ("tokens", "labels", "loss_mask"))
    for theirs in zip(*parts, strict=True):
        ids, mask = next(expected)
        assert [part.tolist() for part in theirs] == [ids[:-1], ids[1:], mask[1:]], f"row {at}"
        num_documents, num_learned = num_documents + 1, num_learned + sum(mask[1:])
assert next(expected, None) is None, "fewer documents than here"
print(
    f"{len(dataset)} rows valid; {num_documents} documents with the same ids, {num_learned:,} tokens learned, as here"
)
