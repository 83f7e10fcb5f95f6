"""Checks that a manifest, whose fields have the right types, does not contradict itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tfrecord_io.errors import ManifestError
from tfrecord_io.format.ledger import Shard, Split
from tfrecord_io.format.manifest_types import Manifest, TokenizerFacts
from tfrecord_io.schema import OF_TOKENS

__all__ = ["REMAKE", "check"]

REMAKE = "copy the manifest again from where the dataset was made, or build it anew"


def _contradiction(place: str, what: str) -> ManifestError:
    return ManifestError(f"{place}: {what}", remedy=REMAKE)


def check(manifest: Manifest, *, place: str) -> None:
    """Raises: ManifestError, which names `place`, for the first contradiction."""
    if manifest.schema.with_role("token_ids") is None:
        raise _contradiction(place, "no feature of role 'token_ids', expected one")
    _check_ids(manifest.tokenizer, place=place)
    _check_roles(manifest, place=place)
    _check_buckets(manifest, place=place)
    seen: set[str] = set()
    lengths = manifest.bucket_lengths
    for split_name, split in manifest.splits.items():
        for shard in split.shards:
            where = f"{place}: split {split_name!r}"
            _check_shard(shard, seen=seen, compression=manifest.compression, place=where)
            _check_ledger(shard, layout=manifest.layout, place=where)
            _check_length(shard, lengths, place=where)
            seen.add(shard.name)
        _check_tasks(split, place=f"{place}: split {split_name!r}")
    _check_generations(manifest, place=place)
    if manifest.index_stride == 0 or (manifest.index_stride and manifest.compression != "none"):
        raise _contradiction(
            place,
            f"an index of every {manifest.index_stride}th record with compression {manifest.compression!r}, "
            "expected a stride of at least 1, and no index of compressed shards",
        )
    labels = manifest.schema.with_role("label") or manifest.schema.with_role("token_labels")
    if manifest.label_names is not None and labels is None:
        raise _contradiction(place, "label names without a feature of role 'label' or 'token_labels'")
    if manifest.label_names is not None and manifest.multi_hot_size not in (0, len(manifest.label_names)):
        raise _contradiction(
            place,
            f"{len(manifest.label_names)} label names, expected {manifest.multi_hot_size}, one for each value "
            "of a label",
        )


def _check_ids(facts: TokenizerFacts, *, place: str) -> None:
    named = (facts.eos_id, facts.bos_id, facts.cls_id, facts.sep_id, facts.mask_id, facts.unk_id)
    every = (*facts.special_ids, *facts.sentinel_ids, facts.pad_id, *named)
    largest = max(value for value in every if value is not None)
    if largest >= facts.vocab_size:
        raise _contradiction(place, f"the tokenizer has a special id {largest}, but a vocabulary of {facts.vocab_size}")


def _check_roles(manifest: Manifest, *, place: str) -> None:
    """Whoever finds a feature by its role relies on its shape: [L], [T], or one value."""
    schema = manifest.schema
    target = schema.with_role("target_ids")
    for feature in schema.features:
        if feature.role == "column":
            continue
        expected: tuple[int, ...]
        if feature.role in OF_TOKENS:
            expected = (manifest.row_length,)
        else:
            expected = (target.num_values,) if target and feature.role in ("target_ids", "target_mask") else ()
            if feature.role == "label" and feature.dtype == "int64" and len(feature.shape) == 1:
                expected = feature.shape  # of several classes
        first = feature is schema.with_role(feature.role)
        if not first or feature.shape != expected or (feature.dtype != "int64" and feature.role != "label"):
            raise _contradiction(
                place,
                f"feature {feature.name!r} of role {feature.role!r} is {feature.dtype} {list(feature.shape)}, "
                f"expected int64 {list(expected)}, and one feature of that role",
            )


def _check_shard(shard: Shard, *, seen: set[str], compression: str, place: str) -> None:
    suffix = ".tfrecord.gz" if compression == "gzip" else ".tfrecord"
    if not shard.name.endswith(suffix):
        raise _contradiction(place, f"shard name {shard.name!r}, expected a plain file name that ends in {suffix}")
    if shard.name in seen:
        raise _contradiction(place, f"shard name {shard.name!r} appears twice")
    if shard.num_examples == 0:
        raise _contradiction(place, f"shard {shard.name}: no example, expected at least one")


def _check_ledger(shard: Shard, *, layout: Mapping[str, Any], place: str) -> None:
    ledger = shard.ledger
    if not ledger.balanced:
        raise _contradiction(
            place,
            f"shard {shard.name}: {ledger.rows_in} rows in, but {ledger.rows_used} used "
            f"and {ledger.rows_rejected} rejected",
        )
    one_record = layout["name"] in ("seq2seq", "tokens") or (layout["name"] == "pad" and "stride" not in layout)
    if one_record and shard.num_examples != ledger.rows_used:
        raise _contradiction(
            place,
            f"shard {shard.name}: {shard.num_examples} examples of {ledger.rows_used} rows, "
            "expected as many, since each row is one example",
        )


def _check_buckets(manifest: Manifest, *, place: str) -> None:
    """Lengths ascend, and the features are those of rows of the last one."""
    lengths = manifest.bucket_lengths
    if "bucket_lengths" not in manifest.layout:
        return
    ascending = all(short < long for short, long in itertools.pairwise((0, *lengths)))
    if not lengths or not ascending or lengths[-1] != manifest.row_length:
        raise _contradiction(
            place,
            f"bucket lengths {list(lengths)}, expected them to ascend from 1 or more to the "
            f"{manifest.row_length} tokens of a row",
        )


def _check_length(shard: Shard, lengths: Sequence[int], *, place: str) -> None:
    allowed = lengths or (None,)
    if shard.length not in allowed or (shard.task is None) != (shard.length is None):
        raise _contradiction(
            place,
            f"shard {shard.name}: rows of length {shard.length} of task {shard.task}, expected "
            + (f"one of the lengths {list(lengths)}, and a task" if lengths else "neither without bucket lengths"),
        )


def _check_tasks(split: Split, *, place: str) -> None:
    """Raises: ManifestError if two shards are said to be the rows of one length of the same task."""
    made = [(shard.task, shard.length) for shard in split.shards if shard.task is not None]
    if len(set(made)) < len(made):
        raise _contradiction(place, "two shards are of the same task and the same length")


def _check_generations(manifest: Manifest, *, place: str) -> None:
    """Raises: ManifestError unless the generations together have made every task, and the last one is the dataset's."""
    generations = manifest.generations
    if not generations:
        return
    fingerprints = [each.fingerprint for each in generations]
    if len(set(fingerprints)) < len(fingerprints) or len(fingerprints) < 2 or fingerprints[-1] != manifest.fingerprint:
        raise _contradiction(
            place,
            f"generations {[each[:12] for each in fingerprints]}, expected two or more that differ, the last "
            f"of them {manifest.fingerprint[:12]}",
        )
    for each in generations:
        if each.tasks.keys() != each.rows.keys() or not all(each.tasks.values()) or not all(each.rows.values()):
            raise _contradiction(
                place,
                f"generation {each.fingerprint[:12]} has tasks of {sorted(each.tasks)} and rows of "
                f"{sorted(each.rows)}, expected some of both for each of its splits",
            )
    names = sorted({*manifest.splits, *(name for each in generations for name in each.tasks)})
    for name in names:
        made = sorted(manifest.splits[name].by_task()) if name in manifest.splits else []
        total = sum(each.tasks.get(name, 0) for each in generations)
        if made != list(range(total)):
            raise _contradiction(
                place, f"split {name!r} has {len(made)} tasks, expected the {total} of its generations"
            )
