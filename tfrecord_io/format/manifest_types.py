"""Types of a manifest: the dataset, its tokenizer, and the names of its shards."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from tfrecord_io.errors import ManifestError
from tfrecord_io.format.json_fields import ABSENT, Count, Fingerprint, Name, Sha256, count, items
from tfrecord_io.format.ledger import Split
from tfrecord_io.schema import Schema

Compression = Literal["none", "gzip"]

# Ids are int32 on the device.
_VocabSize = Annotated[int, functools.partial(count, most=2**31)]
_FORMER = re.compile(r"manifest-\d+\.json")


def shard_name(
    *, name: str, split: str, index: int, count: int, compression: Compression = "none", length: int | None = None
) -> str:
    """`NAME-SPLIT-00000-of-00012.tfrecord`, with `.gz` behind it for gzip; with a `length` `NAME-SPLIT-b64-00000-…`."""
    suffix = ".tfrecord.gz" if compression == "gzip" else ".tfrecord"
    family = "" if length is None else f"-b{length}"
    return f"{name}-{split}{family}-{index:05d}-of-{count:05d}{suffix}"


def former_name(generation: int) -> str:
    """`manifest-0.json`: where the manifest of an earlier generation is kept, from the next one on."""
    return f"manifest-{generation}.json"


def folder_and_name(path: str) -> tuple[str, str]:
    """The folder of a dataset and the name of its manifest: `out` is the dataset as it is, and `out/manifest-0.json` as
    it was before rows were appended.
    """
    folder, _, name = path.rpartition("/")
    return (
        (folder or path[: -len(name)] or ".", name)
        if _FORMER.fullmatch(name)
        else (path.rstrip("/") or "/", "manifest.json")
    )


def span(value: Any) -> tuple[int, int]:
    """Read the [start, stop) rows of a split."""
    start, stop = map(count, items(value))
    if start >= stop:
        raise ValueError(f"the rows [{start}, {stop}) of a split")
    return start, stop


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """What one build, or one append, added to a dataset.

    `fingerprint` covers everything that decided the bytes of its shards. By split: `tasks` is the number of its tasks
    (a shard each, or one for each length of rows), `rows` are the [start, stop) rows of the source that they read.
    """

    fingerprint: Fingerprint
    tasks: Mapping[Name, Count]
    rows: Mapping[Name, tuple[Annotated[tuple[int, int], span], ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerFacts:
    """What a trainer needs to know of the tokenizer without loading it. Ids are None where it has no such token.

    sentinel_ids: of <extra_id_0>, <extra_id_1>, ..., in this order, where the vocabulary has them, as T5's has.
    """

    name: str
    kind: str
    vocab_size: _VocabSize
    content_sha256: Sha256
    special_ids: tuple[Count, ...]
    padding_side: Literal["left", "right"]
    pad_id: Count
    eos_id: Count | None = None
    bos_id: Count | None = None
    cls_id: Count | None = None
    sep_id: Count | None = None
    mask_id: Count | None = None
    unk_id: Count | None = None
    # The first manifests of this version were written without it.
    sentinel_ids: tuple[Count, ...] = dataclasses.field(default=(), metadata=ABSENT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that a reader needs. `layout`, `source`, `options`, `engines` and `versions` are plain JSON objects for
    people and tools. `generations` are those of a dataset that was appended to, in order; empty for any other.
    """

    name: Name
    fingerprint: Fingerprint
    schema: Schema
    layout: Mapping[str, Any]
    tokenizer: TokenizerFacts
    splits: Mapping[str, Split]
    label_names: tuple[str, ...] | None = None
    compression: Compression = "none"
    index_stride: Count | None = None
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    engines: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    generations: tuple[Generation, ...] = ()

    @property
    def bucket_lengths(self) -> tuple[int, ...]:
        """The lengths of rows, ascending, if there are several: each shard has one of them."""
        return tuple(self.layout.get("bucket_lengths", ()))

    def bucket(self, length: int) -> Manifest:
        """The manifest of the shards of one length alone, as if there were no others.

        Raises: ManifestError if there is no such length.
        """
        if length not in self.bucket_lengths:
            raise ManifestError(f"no rows of {length} tokens, expected one of {list(self.bucket_lengths)}")
        plain = {name: value for name, value in self.layout.items() if name != "bucket_lengths"}
        splits = {
            name: dataclasses.replace(
                split,
                shards=tuple(
                    dataclasses.replace(shard, length=None, task=None)
                    for shard in split.shards
                    if shard.length == length
                ),
            )
            for name, split in self.splits.items()
        }
        schema = self.schema.with_row_length(length)
        return dataclasses.replace(
            self, schema=schema, layout={**plain, "max_length": length}, splits=splits, generations=()
        )

    @property
    def multi_hot_size(self) -> int:
        """C, where labels are vectors of 0 and 1 for the C classes of which a row may have several; 0 elsewhere."""
        label = self.schema.with_role("label")
        return label.num_values if label is not None and label.shape else 0

    @property
    def row_length(self) -> int:
        """L, the tokens in one row; in the longest, if there are several lengths."""
        feature = self.schema.with_role("token_ids")
        if feature is None:
            raise ManifestError("the schema has no feature of role 'token_ids', expected one")
        return feature.num_values
