"""Repairing a finished dataset: making again what is damaged, and nothing else.

    a shard, its list of rejected rows     from the plan and the source, byte for byte
    the indexes of a sound shard           from the shard
    the tokenizer                          from the copy that the workers used, or the other way round
    the files for TFDS                     from the manifest

The manifest is the standard and is never written: a file that is made again must have the digest that it names, or it
does not appear at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipelines.prepare import storage
from pipelines.prepare.audit.consent import NONE, Consent
from pipelines.prepare.audit.reopened_dataset import ReopenedDataset, reopen
from pipelines.prepare.audit.verify import CheckedFile, verify_shard
from pipelines.prepare.dataset import tfds
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.tokenize.tokenization import bytes_digest
from tfrecord_io.errors import FormatError
from tfrecord_io.manifest import Manifest

__all__ = ["repair"]


def repair(
    root: str, manifest: Manifest, damaged: Sequence[CheckedFile], *, consent: Consent = NONE
) -> Iterator[tuple[str, str]]:
    """Repair the files that `verify_files` found, yielding the name of each and what it was made from.

    Raises: as `reopen`, before anything is changed; OutputError if a shard does not come out as it was: then earlier
        repairs stay.
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
            content = verify_shard(root, shard, of_length)[each.file]
            storage.write_bytes(storage.join(root, each.file), content, inside=root)
            yield each.file, "its shard"


def _remake(root: str, reopened: ReopenedDataset, remade: Sequence[tuple[str, int]]) -> Iterator[tuple[str, str]]:
    """Make whole tasks again. A sound file of a task with several files comes out unchanged."""
    encoder, manifest = reopened.open_encoder(), reopened.manifest
    expected = {split: manifest.splits[split].by_task() for split, _ in remade}
    for split, task in remade:
        job = reopened.job_of(split, task)
        shard_writer.write(reopened.task(split, task), job, encoder, expected=expected[split][task])
        for shard in expected[split][task]:
            verify_shard(root, shard, manifest if shard.length is None else manifest.bucket(shard.length))
            yield shard.name, "the source"


def _restore_tokenizer(root: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Replace a damaged copy of the tokenizer by the sound one."""
    folders = ("tokenizer", storage.join(WORK_FOLDER, manifest.fingerprint, "tokenizer"))
    copies = {name: storage.read_folder(storage.join(root, name)) for name in folders}
    sound = [name for name in folders if bytes_digest(copies[name]) == manifest.tokenizer.content_sha256]
    if not sound:
        raise FormatError(
            f"{root}: neither {folders[0]}/ nor {folders[1]}/ holds the tokenizer that the manifest names",
            remedy="copy one of them again from where the dataset was made",
        )
    wanted = copies[sound[0]]
    for folder in folders:
        if folder in sound:
            continue
        for name in copies[folder].keys() - wanted.keys():
            storage.delete(storage.join(root, folder, name), inside=root)
        for name, content in wanted.items():
            if copies[folder].get(name) != content:
                storage.write_bytes(storage.join(root, folder, name), content, inside=root)
        yield folder, f"{sound[0]}/"
