"""Types of a dataset's manifest, and a check that its values agree."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from tfrecord_io.errors import ManifestError
from tfrecord_io.format.json_fields import Count, Fingerprint, Name, Sha256, checked, count, decoded, items
from tfrecord_io.format.ledger import Shards, Split
from tfrecord_io.schema import ANSWERS, ROLES, Schema
from tfrecord_io.shown import some

REMAKE = "copy the manifest again from its origin, or build the dataset again"

Compression = Literal["none", "gzip"]

_FORMER = re.compile(r"manifest-\d+\.json")


def shard_name(
    *, name: str, split: str, index: int, count: int, compression: Compression = "none", length: int | None = None
) -> str:
    """Return a file name like `NAME-SPLIT-00000-of-00012.tfrecord`, with `-b64` after SPLIT if row `length` is 64."""
    family = "" if length is None else f"-b{length}"
    return f"{name}-{split}{family}-{index:05d}-of-{count:05d}{_suffix(compression)}"


def _suffix(compression: Compression) -> str:
    return ".tfrecord.gz" if compression == "gzip" else ".tfrecord"


def former_name(generation: int) -> str:
    """Return the file name of an earlier generation's manifest, which an append keeps."""
    return f"manifest-{generation}.json"


def folder_and_name(path: str) -> tuple[str, str]:
    """Return a dataset's folder and its manifest's file name, for a path like `out` or `out/manifest-0.json`."""
    folder, _, name = path.rpartition("/")
    if _FORMER.fullmatch(name):
        return folder or path[: -len(name)] or ".", name
    return path.rstrip("/") or "/", "manifest.json"


def _span(value: Any, of: str = "rows of a split") -> tuple[int, int]:
    start, stop = map(count, items(value))
    if start >= stop:
        raise ValueError(f"{of}: the range [{start}, {stop}) is empty")
    return start, stop


def _function(value: Any) -> dict[str, str]:
    fields = checked(value, {}, {"module_sha256": Sha256, "version": str})
    if len({"module_sha256", "version"} & fields.keys()) != 1:
        raise ValueError(f"function {fields} has both or neither of module_sha256 and version, expected one of them")
    return decoded(Mapping[str, str], fields)


# Ids are int32 on the device.
_VocabSize = Annotated[int, functools.partial(count, most=2**31)]
_Spans = tuple[Annotated[tuple[int, int], _span], ...]
_Hashes = Annotated[Any, functools.partial(_span, of="hashes of held-out rows")]
_HeldOut = Annotated[
    Any, functools.partial(checked, needed={"split": Name, "of": Name, "hashes": _Hashes}, others={"by": str | None})
]
_Functions = tuple[Annotated[Any, _function], ...]
_RowsOfEngine = Annotated[Any, functools.partial(checked, needed={"rows": Count, "rows_checked": Count})]


def _plain(needed: Mapping[str, Any] | None = None, **others: Any) -> Any:
    return functools.partial(checked, needed=needed or {}, others=others)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """A build of a dataset, or an append to it.

    fingerprint: a digest of everything that determines the bytes of its shards.
    tasks: number of tasks that wrote its shards, by split.
    rows: source rows that it read, by split, as ranges [start, stop).
    """

    fingerprint: Fingerprint
    tasks: Mapping[Name, Count]
    rows: Mapping[Name, _Spans]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerFacts:
    """Properties of a dataset's tokenizer that a trainer needs. Ids of missing special tokens are None.

    sentinel_ids: ids of T5's tokens <extra_id_0>, <extra_id_1>, ....
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
    sentinel_ids: tuple[Count, ...] = ()

    @property
    def end_id(self) -> int | None:
        """Id of the token that ends a generated text: EOS, otherwise [SEP]."""
        return self.sep_id if self.eos_id is None else self.eos_id


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a dataset for its readers. `generations` is empty before any append."""

    name: Name
    fingerprint: Fingerprint
    schema: Schema
    layout: Annotated[
        Mapping[str, Any], _plain({"name": str, "max_length": Count}, one_record=bool, bucket_lengths=tuple[Count, ...])
    ]
    tokenizer: TokenizerFacts
    splits: Mapping[Name, Annotated[Split, Split.from_json]]
    label_names: tuple[str, ...] | None = None
    compression: Compression = "none"
    index_stride: Count | None = None
    source: Annotated[Mapping[str, Any], _plain(splits=Mapping[str, _Spans], origins=Mapping[str, Name])] = (
        dataclasses.field(default_factory=dict)
    )
    options: Annotated[Mapping[str, Any], _plain(functions=_Functions, hold_out=tuple[_HeldOut, ...])] = (
        dataclasses.field(default_factory=dict)
    )
    engines: Annotated[Mapping[str, Any], _plain(splits=Mapping[str, Mapping[str, _RowsOfEngine]])] = dataclasses.field(
        default_factory=dict
    )
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    generations: tuple[Generation, ...] = ()

    @property
    def bucket_lengths(self) -> tuple[int, ...]:
        """Row lengths, ascending, if there are several; otherwise empty."""
        return tuple(self.layout.get("bucket_lengths", ()))

    def bucket(self, length: int) -> Manifest:
        """Return a manifest with only the shards of one row length. Raises: ManifestError if no rows have it."""
        if length not in self.bucket_lengths:
            raise ManifestError(f"no rows of length {length}, expected one of {list(self.bucket_lengths)}")
        plain = {name: value for name, value in self.layout.items() if name != "bucket_lengths"}
        splits = {}
        for name, split in self.splits.items():
            shards = [shard for shard in split.shards if shard.length == length]
            plain_shards = tuple(dataclasses.replace(shard, length=None, task=None) for shard in shards)
            splits[name] = dataclasses.replace(split, shards=plain_shards)
        schema, layout = self.schema.with_row_length(length), {**plain, "max_length": length}
        return dataclasses.replace(self, schema=schema, layout=layout, splits=splits, generations=())

    @property
    def multi_hot_size(self) -> int:
        """Number of classes if labels are vectors of 0 and 1; 0 for other labels."""
        label = self.schema.with_role("label")
        return label.num_values if label is not None and label.shape else 0

    @property
    def row_length(self) -> int:
        feature = self.schema.row_ids
        assert feature is not None, "a manifest has token ids"
        return feature.num_values


def contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield a message for each contradiction in a manifest. Use only the first: later checks rely on earlier ones."""
    if manifest.schema.row_ids is None:
        yield "no token ids, expected a feature of role 'token_ids', or of 'chosen_ids' and 'rejected_ids'"
    for side in ANSWERS:
        roles = [feature.role for feature in manifest.schema.features if ROLES[feature.role].side == side]
        if len(roles) < 3 and manifest.schema.with_role("token_ids") is None:
            yield f"roles {roles} of the {side} answer, expected '{side}_ids', '{side}_mask' and '{side}_loss_mask'"
    facts, lengths = manifest.tokenizer, manifest.bucket_lengths
    named = (facts.eos_id, facts.bos_id, facts.cls_id, facts.sep_id, facts.mask_id, facts.unk_id)
    ids = (*facts.special_ids, *facts.sentinel_ids, facts.pad_id, *named)
    largest = max(value for value in ids if value is not None)
    if largest >= facts.vocab_size:
        yield f"the tokenizer's special id {largest} is not below the vocabulary size {facts.vocab_size}"
    yield from _of_roles(manifest)
    ascending = all(short < long for short, long in itertools.pairwise((0, *lengths)))
    if "bucket_lengths" in manifest.layout and not (lengths and ascending and lengths[-1] == manifest.row_length):
        yield f"bucket lengths {list(lengths)}, expected ascending lengths up to the row length {manifest.row_length}"
    for name, split in manifest.splits.items():
        columns = split.columns
        yield from (f"split {name!r}: {contradiction}" for contradiction in _of_shards(columns, manifest))
        if columns.task and len({*zip(columns.task, columns.length or (), strict=False)}) < len(columns):
            yield f"split {name!r}: two shards have the same task and row length"
    names = [name for split in manifest.splits.values() for name in split.columns.name]
    if len(set(names)) < len(names):
        yield f"shard name {collections.Counter(names).most_common(1)[0][0]!r} appears twice"
    ranges = manifest.source.get("splits", {})
    if strangers := [name for name in manifest.source.get("origins", {}) if name not in ranges]:
        yield f"split {strangers[0]!r} has an origin but no rows"
    yield from _of_generations(manifest)
    if manifest.index_stride == 0 or (manifest.index_stride and manifest.compression != "none"):
        yield (
            f"index_stride is {manifest.index_stride} with compression {manifest.compression!r}, expected at least 1, "
            "or null for compressed shards"
        )
    if manifest.label_names is not None:
        count, size = len(manifest.label_names), manifest.multi_hot_size
        if not any(ROLES[feature.role].is_label for feature in manifest.schema.features):
            yield "label names, but no feature of role 'label' or 'token_labels'"
        if size not in (0, count):
            yield f"{some(count, 'label name')}, expected {size}, one for each value of a label"


def _of_roles(manifest: Manifest) -> Iterator[str]:
    schema = manifest.schema
    target = schema.with_role("target_ids")
    shapes = {"[L]": (manifest.row_length,), "[T]": (target.num_values,) if target else (), "[]": ()}
    for feature in schema.features:
        spec = ROLES[feature.role]
        if spec.shape == "any":
            continue
        of_classes = feature.shape if feature.dtype == "int64" and len(feature.shape) == 1 else ()
        expected = shapes.get(spec.shape, of_classes)
        right = feature.shape == expected and feature.dtype in spec.dtypes
        if not (right and feature is schema.with_role(feature.role)):
            yield (
                f"feature {feature.name!r} of role {feature.role!r} is {feature.dtype} {list(feature.shape)}, "
                f"expected int64 {list(expected)}, and no other feature of this role"
            )


def _of_shards(shards: Shards, manifest: Manifest) -> Iterator[str]:
    suffix = _suffix(manifest.compression)
    of_row, lengths, none = manifest.layout.get("one_record"), manifest.bucket_lengths, [None] * len(shards)
    expected = f"a length of {list(lengths)} and a task" if lengths else "neither, since there are no bucket lengths"
    by_reason = (*shards.rejected.values(), *shards.filtered.values())
    unused = list(map(sum, zip(*by_reason, strict=True))) or [0] * len(shards)
    counted = zip(shards.name, shards.num_examples, shards.rows_in, shards.rows_used, unused, strict=True)
    for name, examples, rows_in, used, left in counted:
        if not name.endswith(suffix):
            yield f"shard name {name!r}, expected a name that ends in {suffix}"
        if examples == 0:
            yield f"shard {name}: no examples, expected at least one"
        if rows_in != used + left:
            yield f"shard {name}: {some(rows_in, 'input row')}, but {used} used and {left} rejected or filtered"
        if of_row and examples != used:
            yield f"shard {name}: {some(examples, 'example')} from {some(used, 'row')}, expected one per row"
    for name, length, task in zip(shards.name, shards.length or none, shards.task or none, strict=True):
        if length not in (lengths or (None,)) or (task is None) != (length is None):
            yield f"shard {name}: row length {length} and task {task}, expected {expected}"


def _of_generations(manifest: Manifest) -> Iterator[str]:
    generations = manifest.generations
    if not generations:
        return
    fingerprints = [generation.fingerprint for generation in generations]
    if len(set(fingerprints)) < len(fingerprints) or len(fingerprints) < 2 or fingerprints[-1] != manifest.fingerprint:
        yield (
            f"generations {[fingerprint[:12] for fingerprint in fingerprints]}, expected at least two different ones, "
            f"the last of them {manifest.fingerprint[:12]}"
        )
    for generation in generations:
        counts, rows = generation.tasks, generation.rows
        if counts.keys() != rows.keys() or not all(counts.values()) or not all(rows.values()):
            yield (
                f"generation {generation.fingerprint[:12]} has tasks of splits {sorted(counts)} and rows of splits "
                f"{sorted(rows)}, expected tasks and rows of the same splits"
            )
    for name in sorted({*manifest.splits, *(name for generation in generations for name in generation.tasks)}):
        tasks = sorted({*manifest.splits[name].tasks}) if name in manifest.splits else []
        total = sum(generation.tasks.get(name, 0) for generation in generations)
        if tasks != list(range(total)):
            yield f"split {name!r} has {some(len(tasks), 'task')}, but its generations have {total}"
