"""Verifying the kept manifests of a dataset that was appended to: each is of the first shards of the present ones.

    manifest.json      generations 0, 1, 2    train  shards 0 1 2 3 4
    manifest-1.json    generations 0, 1       train  shards 0 1 2 3      with the digests that these have now
    manifest-0.json    generation  0          train  shards 0 1 2

They cannot be made again: `manifest.json` does not say which options, engines and versions a dataset had before.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

from pipelines.prepare import storage
from pipelines.prepare.dataset import own_files
from pipelines.prepare.dataset.generations import generations_of
from tfrecord_io.errors import ManifestError
from tfrecord_io.manifest import Manifest, Shard, former_name

__all__ = ["REMEDY", "problems"]

REMEDY = (
    "copy it again from where the dataset was made, since no other file has all of its content; only trainings that "
    "began before rows were appended need it"
)


def problems(root: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the name of each manifest that should be kept in `root`, and its problem, empty if it is sound."""
    for number in range(len(manifest.generations) - 1):
        name = former_name(number)
        try:
            problem = _disagreement(own_files.read_manifest(root, name=name), manifest, number)
        except ManifestError as error:
            problem = error.cause.removeprefix(f"{storage.join(root, name)}: ")
        yield name, problem


def _disagreement(former: Manifest | None, manifest: Manifest, number: int) -> str:
    """Return how a kept manifest differs from what the current one says of generation `number`; empty if it agrees."""
    if former is None:
        return f"not there, expected the manifest of generation {number}"
    expected = manifest.generations[: number + 1]
    if former.fingerprint != expected[-1].fingerprint:
        return f"has fingerprint {former.fingerprint}, expected {expected[-1].fingerprint}, of generation {number}"
    if generations_of(former) != expected:
        return f"has other tasks or rows than manifest.json gives generations 0 to {number}, expected the same"
    tasks = Counter[str]()
    for generation in expected:
        tasks.update(generation.tasks)
    named = [shard for _, split in sorted(former.splits.items()) for shard in split.shards]
    for mine, present in itertools.zip_longest(named, _first_shards(manifest, tasks)):
        if mine != present:
            return f"names {_named(mine)}, expected {_named(present)} as in manifest.json"
    facts = ("schema", "layout", "label_names", "compression", "index_stride")
    others = [name for name in facts if getattr(former, name) != getattr(manifest, name)]
    if former.tokenizer.content_sha256 != manifest.tokenizer.content_sha256:
        others.append("tokenizer")
    return f"has another {', '.join(others)} than manifest.json, expected the same" if others else ""


def _first_shards(manifest: Manifest, tasks: Mapping[str, int]) -> list[Shard]:
    """Return the shards of the first tasks of each split, as many as `tasks` says."""
    return [
        shard
        for split, count in sorted(tasks.items())
        for index, shard in enumerate(manifest.splits[split].shards)
        if manifest.splits[split].task_of(index) < count
    ]


def _named(shard: Shard | None) -> str:
    return f"shard {shard.name} with sha256 {shard.sha256}" if shard else "no shard"
