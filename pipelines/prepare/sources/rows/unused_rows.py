"""Mark unused rows: filtered, or rejected because they can't be used.

A column of reasons marks filtered rows, which keep their numbers:

    text                 \\0filtered
    'Good. Really.'      ''                    stays
    null                 'filtered'            left out by one of the user's filters

A batch has this column only if some rows are filtered. The other values of filtered rows are meaningless.
"""

import dataclasses
import functools
import io
import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare import storage
from tfrecord_io.errors import FormatError
from tfrecord_io.format.json_fields import ABSENT, Count
from tfrecord_io.manifest import is_filtered
from tfrecord_io.shown import some

NAMED_ROWS = 3
TYPES = pa.schema([("row", pa.int64()), ("reason", pa.string()), ("of_split", pa.string()), ("of_row", pa.int64())])
_LIST = pa.dictionary(pa.int32(), pa.string())
_STORED = pa.schema([("row", pa.int64()), ("reason", _LIST), ("of_split", _LIST), ("of_row", pa.int64())])
# Largest uncompressed sizes of a decided row, and of the texts that rows refer to.
_ROW_BYTES, _LIST_BYTES = 32, 1 << 20
_DECIDED_FOR = "decided for"
_REMEDIES = {
    "content_not_text": "turn such contents into text with a --map, or leave the rows out with a --filter",
    "role_missing": "name the column of messages with --messages-column, or give each message a role with a --map",
    "no_assistant": "give each conversation an answer to learn, with the role assistant",
    "template_rejected": "give the chat template its fields with a --map, or choose another with --chat-template",
    "mask_not_clear": "with a --map, make `train` true or false, and give train_detail offsets within the content",
    "prompt_empty": "name the column that holds the prompt with --prompt-column",
    "too_long": "give a larger --max-length",
    "target_too_long": "give a larger --target-length",
    "question_too_long": "give a larger --max-length, or the question's --text-column before the context's",
    "answer_mismatch": "give the question's --text-column before the context's, where answer_start counts characters",
    **dict.fromkeys(("tools_not_json", "tool_calls_not_json", "options_not_json"), "correct the JSON with a --map"),
}
_WORDS = {
    **{f"{part}_null": f"{part} are null" for part in ("messages", "words", "tags", "answers")},
    "column_null": "a kept column is null",
    "messages_empty": "no messages",
    "role_missing": "a message has no role",
    "content_null": "a message has only a role",
    "content_not_text": "the content of a message is not text",
    "mask_not_clear": "the learned parts of an answer are not clear",
    "tools_not_json": "tools are not JSON",
    "tool_calls_not_json": "tool calls are not JSON",
    "options_not_json": "options of the chat template are not JSON",
    "template_rejected": "the chat template refuses the row",
    "template_prefix": "the assistant's part of the text is not certain",
    "template_limit": "the chat template takes too much time or memory",
    "no_assistant": "nothing to learn",
    "prompt_empty": "the prompt is empty, or both answers begin differently and no column holds it",
    "tags_length": "not as many tags as words",
    "answer_mismatch": "the answer is not at the start that the row gives",
    "label_length": "a vector of labels has another length than the first",
    "column_length": "a kept vector has another length than the first",
    "column_too_long": "a kept text of more than 1 MiB",
    "int_out_of_range": "an integer is beyond int32",
    "float_out_of_range": "a number is beyond float32",
    "too_long": "too many tokens",
    "target_too_long": "too many tokens in the target",
    "cannot_truncate": "cannot be cut to the length",
}
# No column of a source has this name.
_COLUMN = "\0filtered"


def with_reasons(batch: pa.RecordBatch, reasons: np.ndarray) -> pa.RecordBatch:
    """Return a batch of n rows with a column of `reasons` for filtering rows, str objects [n], '' for unfiltered rows.

    The column is omitted if no row is filtered. If most are, their values become null, so that texts are not copied.
    """
    kept = reasons == ""
    if kept.all():
        return batch
    arrays = batch.columns
    if 2 * kept.sum() < len(kept):
        indices = pa.array(np.arange(len(kept)), mask=~kept)
        arrays = [column.take(indices) for column in arrays]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(reasons, pa.string())], names=[*batch.schema.names, _COLUMN])


def reasons_of(batch: pa.RecordBatch) -> np.ndarray | None:
    """Return the reasons that `with_reasons` added to a batch of n rows, str objects [n]; None for other batches."""
    index = batch.schema.get_field_index(_COLUMN)
    return None if index < 0 else np.asarray(batch.column(index).to_numpy(zero_copy_only=False))


def without_reasons(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name != _COLUMN])


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectedRow:
    """Row that can't be used. `row`: its number in the split."""

    row: Count
    reason: str
    detail: str = dataclasses.field(default="", metadata=ABSENT)

    @property
    def why(self) -> str:
        return f"{words_of(self.reason)}: {self.detail}" if self.detail else words_of(self.reason)


def words_of(reason: str) -> str:
    """Return a reason in words, such as "text is null" for `text_null`."""
    return _WORDS.get(reason) or re.sub("_null$", " is null", reason).replace("_", " ")


def remedy_of(reasons: Mapping[str, int]) -> str | None:
    """Return the remedy for the most frequent reason, or None if it has none. `reasons`: counts by reason."""
    return _REMEDIES.get(max(reasons, key=lambda reason: (reasons[reason], reason), default=""))


def split_reasons(reasons: np.ndarray) -> tuple[dict[str, int], list[int]]:
    """Return counts of filtered rows by reason, and sorted indices of rejected rows. `reasons`: '' for used rows."""
    masks = {reason: reasons == reason for reason in np.unique(reasons[reasons != ""].astype(str)).tolist()}
    filtered = {reason: int(mask.sum()) for reason, mask in masks.items() if is_filtered(reason)}
    rejected = [np.flatnonzero(mask) for reason, mask in masks.items() if not is_filtered(reason)]
    return filtered, np.sort(np.concatenate(rejected)).tolist() if rejected else []


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnusedRows:
    """Numbers of unused rows by reason, and the `first` rejected rows. `rejected` is a lower bound unless `exact`."""

    rejected: Mapping[str, int]
    filtered: Mapping[str, int]
    first: tuple[RejectedRow, ...]
    exact: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecidedRows:
    """Duplicate and contaminated rows of one split, in the file `path`, or in `content` until the file exists.

    `num_rows`: rows in the split. `share`: the fraction kept. `decided_for`: the compared rows, as text.
    """

    path: str
    num_rows: int
    decided_for: str = ""
    share: float = 1.0
    content: pa.Table | None = dataclasses.field(default=None, compare=False, repr=False)

    def reasons(self, first: int, count: int) -> np.ndarray:
        """Return why each of the `count` rows from `first` on is left out, str objects [count], '' if it is kept."""
        table = self.content if self.content is not None else _stored(self.path, most_rows=self.num_rows)
        rows = table["row"].to_numpy()
        inside = slice(*np.searchsorted(rows, [first, first + count]))
        reasons = np.full(count, "", object)
        reasons[rows[inside] - first] = table["reason"].slice(inside.start, inside.stop - inside.start).to_pylist()
        return reasons

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "content": None}  # workers read the file


def encode(table: pa.Table, *, decided_for: str) -> bytes:
    """Return the content of a Parquet file with `table`, the duplicate and contaminated rows (columns of `TYPES`)."""
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({_DECIDED_FOR: decided_for}), sink, compression="zstd")
    return sink.getvalue()


def decided_for(table: pa.Table) -> str:
    """Return the value of `decided_for` that `encode` has stored with a table."""
    return str((table.schema.metadata or {}).get(_DECIDED_FOR.encode(), b"").decode(errors="replace"))


def decode(path: str, *, most_rows: int) -> pa.Table:
    """Read a file that `encode` wrote, without using memory for more than `most_rows` rows.

    Raises: FormatError.
    """
    most_bytes = _LIST_BYTES + _ROW_BYTES * most_rows
    try:
        content = io.BytesIO(storage.read_bytes(path, most_bytes=most_bytes))
        # A compressed file may repeat a long text for every row.
        with pq.ParquetFile(content, read_dictionary=["reason", "of_split"]) as file:
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            if file.metadata.num_rows > most_rows or sum(group.total_byte_size for group in groups) > most_bytes:
                raise ValueError(f"{some(file.metadata.num_rows, 'row')}, expected at most {most_rows:,} short rows")
            if not file.schema_arrow.remove_metadata().equals(_STORED):
                raise ValueError(f"columns {file.schema_arrow.names}, expected {TYPES.names}")
            table = file.read()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise FormatError(
            f"{path}: the list of duplicate and contaminated rows is missing or damaged ({error})",
            remedy="copy .prep/ again from where the dataset was made, or build it again with --overwrite",
        ) from error
    return table


_stored = functools.lru_cache(maxsize=8)(decode)
