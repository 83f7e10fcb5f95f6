"""Checks that a manifest, whose fields have the right types, does not contradict itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tfrecord_io.format.ledger import Shard
from tfrecord_io.format.manifest_types import Manifest
from tfrecord_io.schema import OF_TOKENS

REMAKE = "copy the manifest again from where the dataset was made, or build it anew"


def contradictions(manifest: Manifest) -> Iterator[str]:
    """What does not go together in a manifest, as messages say it. What follows the first one may be wrong."""
    if manifest.schema.with_role("token_ids") is None:
        yield "no feature of role 'token_ids', expected one"
    facts, lengths = manifest.tokenizer, manifest.bucket_lengths
    named = (facts.eos_id, facts.bos_id, facts.cls_id, facts.sep_id, facts.mask_id, facts.unk_id)
    ids = (*facts.special_ids, *facts.sentinel_ids, facts.pad_id, *named)
    largest = max(value for value in ids if value is not None)
    if largest >= facts.vocab_size:
        yield f"the tokenizer has a special id {largest}, but a vocabulary of {facts.vocab_size}"
    yield from _of_roles(manifest)
    ascending = all(short < long for short, long in itertools.pairwise((0, *lengths)))
    if "bucket_lengths" in manifest.layout and not (lengths and ascending and lengths[-1] == manifest.row_length):
        length = manifest.row_length
        yield f"bucket lengths {list(lengths)}, expected them to ascend from 1 or more to the {length} tokens of a row"
    seen: set[str] = set()
    for name, split in manifest.splits.items():
        for shard in split.shards:
            if shard.name in seen:
                yield f"split {name!r}: shard name {shard.name!r} appears twice"
            yield from (f"split {name!r}: {what}" for what in _of_shard(shard, manifest))
            seen.add(shard.name)
        made = [(shard.task, shard.length) for shard in split.shards if shard.task is not None]
        if len(set(made)) < len(made):
            yield f"split {name!r}: two shards are of the same task and the same length"
    ranges = manifest.source.get("splits", {})
    if strangers := [name for name in manifest.source.get("origins", {}) if name not in ranges]:
        yield f"an origin of split {strangers[0]!r}, which has no rows"
    yield from _of_generations(manifest)
    if manifest.index_stride == 0 or (manifest.index_stride and manifest.compression != "none"):
        yield (
            f"an index of every {manifest.index_stride}th record with compression {manifest.compression!r}, "
            "expected a stride of at least 1, and no index of compressed shards"
        )
    if manifest.label_names is not None:
        count, size = len(manifest.label_names), manifest.multi_hot_size
        if not (manifest.schema.with_role("label") or manifest.schema.with_role("token_labels")):
            yield "label names without a feature of role 'label' or 'token_labels'"
        if size not in (0, count):
            yield f"{count} label names, expected {size}, one for each value of a label"


def _of_roles(manifest: Manifest) -> Iterator[str]:
    """Whoever finds a feature by its role relies on its shape: [L], [T], or one value."""
    schema = manifest.schema
    target = schema.with_role("target_ids")
    for feature in schema.features:
        expected: tuple[int, ...] = ()
        if feature.role in OF_TOKENS:
            expected = (manifest.row_length,)
        elif target and feature.role in ("target_ids", "target_mask"):
            expected = (target.num_values,)
        elif feature.role == "label" and feature.dtype == "int64" and len(feature.shape) == 1:
            expected = feature.shape  # of several classes
        right = feature.shape == expected and (feature.dtype == "int64" or feature.role == "label")
        if feature.role != "column" and not (right and feature is schema.with_role(feature.role)):
            yield (
                f"feature {feature.name!r} of role {feature.role!r} is {feature.dtype} {list(feature.shape)}, "
                f"expected int64 {list(expected)}, and one feature of that role"
            )


def _of_shard(shard: Shard, manifest: Manifest) -> Iterator[str]:
    suffix = ".tfrecord.gz" if manifest.compression == "gzip" else ".tfrecord"
    if not shard.name.endswith(suffix):
        yield f"shard name {shard.name!r}, expected a plain file name that ends in {suffix}"
    if shard.num_examples == 0:
        yield f"shard {shard.name}: no example, expected at least one"
    ledger, layout, lengths = shard.ledger, manifest.layout, manifest.bucket_lengths
    used = ledger.rows_used
    if not ledger.balanced:
        yield f"shard {shard.name}: {ledger.rows_in} rows in, but {used} used and {ledger.rows_rejected} rejected"
    one_record = layout["name"] in ("seq2seq", "tokens") or (layout["name"] == "pad" and "stride" not in layout)
    if one_record and shard.num_examples != used:
        count = shard.num_examples
        yield f"shard {shard.name}: {count} examples of {used} rows, expected as many, since each row is one example"
    if shard.length not in (lengths or (None,)) or (shard.task is None) != (shard.length is None):
        expected = f"one of the lengths {list(lengths)}, and a task" if lengths else "neither without bucket lengths"
        yield f"shard {shard.name}: rows of length {shard.length} of task {shard.task}, expected {expected}"


def _of_generations(manifest: Manifest) -> Iterator[str]:
    """The generations together have made every task, and the last one is the dataset's."""
    generations = manifest.generations
    if not generations:
        return
    fingerprints = [each.fingerprint for each in generations]
    if len(set(fingerprints)) < len(fingerprints) or len(fingerprints) < 2 or fingerprints[-1] != manifest.fingerprint:
        yield (
            f"generations {[each[:12] for each in fingerprints]}, expected two or more that differ, the last "
            f"of them {manifest.fingerprint[:12]}"
        )
    for each in generations:
        if each.tasks.keys() != each.rows.keys() or not all(each.tasks.values()) or not all(each.rows.values()):
            yield (
                f"generation {each.fingerprint[:12]} has tasks of {sorted(each.tasks)} and rows of "
                f"{sorted(each.rows)}, expected some of both for each of its splits"
            )
    for name in sorted({*manifest.splits, *(name for each in generations for name in each.tasks)}):
        made = sorted(manifest.splits[name].by_task()) if name in manifest.splits else []
        total = sum(each.tasks.get(name, 0) for each in generations)
        if made != list(range(total)):
            yield f"split {name!r} has {len(made)} tasks, expected the {total} of its generations"
