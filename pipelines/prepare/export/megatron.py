"""Export to Megatron's indexed dataset, version 1, for Megatron-LM, NeMo, GPT-NeoX and MaxText's mmap.

    NAME.bin   the tokens of all documents without padding, uint16 or int32
    NAME.idx   "MMIDIDX\\0\\0", uint64 version 1, uint8 code of the dtype, uint64 sequences, uint64 entries of `ends`,
               int32 [S] tokens of each sequence, int64 [S] its first byte, int64 [S + 1] `ends`: 0, 1, 2, …, S

Numbers are little endian; each document is a sequence (`token_columns`). Source: NVIDIA/Megatron-LM,
`megatron/core/datasets/indexed_dataset.py` (`_IndexWriter`, `DType`), which uses uint16 for vocabularies of fewer than
65,500 tokens.
"""

import struct
from collections.abc import Iterator

import numpy as np

from pipelines.prepare.export import token_columns
from pipelines.prepare.export.writer import OF_DOCUMENTS, Columns, Writer

_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
_SMALL_VOCABULARY = 65_500


class MegatronWriter(Writer):
    def check(self) -> None:
        self.require_held(OF_DOCUMENTS)

    def files(self, batches: Iterator[Columns]) -> dict[str, bytes]:
        manifest = self._manifest
        dtype = np.dtype(np.uint16 if manifest.tokenizer.vocab_size < _SMALL_VOCABULARY else np.int32)
        columns, lengths_S = token_columns.joined_documents(batches, manifest)
        begins_S = (np.cumsum(lengths_S) - lengths_S) * dtype.itemsize
        header = _MAGIC + struct.pack("<QBQQ", _VERSION, _CODES[dtype], len(lengths_S), len(lengths_S) + 1)
        ends = np.arange(len(lengths_S) + 1, dtype=np.int64)
        index = header + lengths_S.astype(np.int32).tobytes() + begins_S.astype(np.int64).tobytes() + ends.tobytes()
        return {"{}.bin": columns["input_ids"].astype(dtype).tobytes(), "{}.idx": index}
