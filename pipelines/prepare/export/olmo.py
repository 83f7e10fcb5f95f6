"""Export to the NumPy files of OLMo-core.

    token_ids_part_NAME.npy       ids of all documents, in the smallest unsigned type for the vocabulary; no header
    labels_mask_part_NAME.npy     a byte per token, 1 if the token is learned; only for layouts with a loss mask
    token_ids_part_NAME.csv.gz    a line `start,end` for each document, in tokens

Sources: allenai/open-instruct, `open_instruct/numpy_dataset_conversion.py`; allenai/OLMo-core 3.0,
`olmo_core/data/numpy_dataset.py` (the choice of the integers) and `olmo_core/data/utils.py` (`iter_document_indices`).
"""

import gzip
from collections.abc import Iterator, Mapping

import numpy as np

from pipelines.prepare.export import token_columns
from pipelines.prepare.export.token_columns import IGNORED
from pipelines.prepare.export.writer import OF_DOCUMENTS, Columns, Writer
from tfrecord_io.shown import some


class OlmoWriter(Writer):
    def check(self) -> None:
        self.require_held((*OF_DOCUMENTS, "loss_mask"))

    def files(self, batches: Iterator[Columns]) -> dict[str, bytes]:
        schema, facts = self._manifest.schema, self._manifest.tokenizer
        columns, lengths = token_columns.joined_documents(batches, self._manifest)
        ends = np.cumsum(lengths[lengths > 0])
        starts = np.append(0, ends)[:-1]
        # OLMo-core cuts local files at each EOS, so a document needs one at its end and none before.
        not_by_eos = _not_by_eos(columns["input_ids"], starts, ends, facts.end_id)
        self.counts = {"documents": len(ends), "not_by_eos": not_by_eos}
        borders = "".join(f"{start},{end}\n" for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
        files = {
            "token_ids_part_{}.npy": columns["input_ids"].astype(np.min_scalar_type(facts.vocab_size - 1)).tobytes(),
            "token_ids_part_{}.csv.gz": gzip.compress(borders.encode(), mtime=0),
        }
        if schema.with_role("loss_mask") is not None:
            files["labels_mask_part_{}.npy"] = (columns["labels"] != IGNORED).tobytes()
        return files

    def note(self, counts: Mapping[str, int]) -> str:
        if not counts["not_by_eos"]:
            return ""
        return (
            f"{counts['not_by_eos']:,} of {some(counts['documents'], 'document')} have no EOS at the end, or one "
            "before the end. OLMo-core cuts local files at each EOS; give use_array_if_local=False "
            "(OLMo-core 3), so that it reads the borders of documents from the .csv.gz files"
        )


def _not_by_eos(ids: np.ndarray, starts: np.ndarray, ends: np.ndarray, eos: int | None) -> int:
    at_end = np.zeros(len(ids), np.bool_)
    at_end[ends - 1] = True
    differs = (ids == (-1 if eos is None else eos)) != at_end
    return int(np.count_nonzero(np.logical_or.reduceat(differs, starts))) if len(starts) else 0
