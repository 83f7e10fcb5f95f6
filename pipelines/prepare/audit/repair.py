"""Making again what is damaged in a finished dataset, and nothing else.

    a shard, its list of rejected rows     from the plan and the source, byte for byte
    the index of a sound shard             from the shard
    the tokenizer                          from the copy that the workers used, or the other way round
    the files for TFDS                     from the manifest

The manifest is the measure and is never written: what is made again must have the digest that it names, or does not
appear at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipelines.prepare import storage
from pipelines.prepare.audit.consent import NONE, Consent
from pipelines.prepare.audit.reopened_dataset import ReopenedDataset, reopen
from pipelines.prepare.audit.verify import Checked, verify_shard
from pipelines.prepare.dataset import tfds
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.tokenize.folder_digest import bytes_digest
from tfrecord_io.errors import FormatError
from tfrecord_io.manifest import Manifest

__all__ = ["repair"]


def repair(
    root: str, manifest: Manifest, damaged: Sequence[Checked], *, consent: Consent = NONE
) -> Iterator[tuple[str, str]]:
    """Repairs the files that `verify_files` found, yielding the name of each and what it was made from.

    Raises: as `reopen`, before anything is changed; OutputError if a shard does not come out as it was, when what was
        repaired before stays.
    """
    made_by = {each: manifest.splits[each.split].task_of(each.index) for each in damaged if each.split}
    remade = sorted({(each.split, made_by[each]) for each in damaged if each.part in ("shard", "rejected")})
    reopened = reopen(root, manifest, consent=consent) if remade else None
    if remade or any(each.part == "tokenizer" for each in damaged):
        yield from _restore_tokenizer(root, manifest)
    if reopened is not None:
        yield from _remake(root, reopened, remade)
        yield from ((each.file, "the source") for each in damaged if each.part == "rejected")
    for each in damaged:
        if each.part == "tfds":
            storage.write_bytes(storage.join(root, each.file), tfds.files(manifest)[each.file], inside=root)
            yield each.file, "the manifest"
        elif each.part == "index" and (each.split, made_by[each]) not in remade:
            shard = manifest.splits[each.split].shards[each.index]
            of_length = manifest if shard.length is None else manifest.bucket(shard.length)
            storage.write_bytes(storage.join(root, each.file), verify_shard(root, shard, of_length), inside=root)
            yield each.file, "its shard"


def _remake(root: str, reopened: ReopenedDataset, remade: Sequence[tuple[str, int]]) -> Iterator[tuple[str, str]]:
    """Makes whole tasks again. Of several files that a task makes, those that were sound come out as they are."""
    encoder, manifest = reopened.open_encoder(), reopened.manifest
    expected = {split: manifest.splits[split].by_task() for split, _ in remade}
    for split, task in remade:
        shard_writer.write(reopened.task(split, task), reopened.job, encoder, expected=expected[split][task])
        for shard in expected[split][task]:
            verify_shard(root, shard, manifest if shard.length is None else manifest.bucket(shard.length))
            yield shard.name, "the source"


def _restore_tokenizer(root: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Of the two copies, the sound one replaces the other."""
    places = ("tokenizer", storage.join(WORK_FOLDER, manifest.fingerprint, "tokenizer"))
    copies = {place: storage.read_folder(storage.join(root, place)) for place in places}
    sound = [place for place in places if bytes_digest(copies[place]) == manifest.tokenizer.content_sha256]
    if not sound:
        raise FormatError(
            f"{root}: neither {places[0]}/ nor {places[1]}/ holds the tokenizer that the manifest names",
            remedy="copy one of them again from where the dataset was made",
        )
    for place in (place for place in places if place not in sound):
        folder = storage.join(root, place)
        wanted = copies[sound[0]]
        for name in copies[place].keys() - wanted.keys():
            storage.delete(storage.join(folder, name), inside=root)
        for name in (name for name, content in wanted.items() if copies[place].get(name) != content):
            storage.write_bytes(storage.join(folder, name), wanted[name], inside=root)
        yield place, f"{sound[0]}/"
