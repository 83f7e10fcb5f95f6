"""Read and write manifest.json, the commit record of a dataset (docs/format.md).

Equal manifests give equal bytes. A manifest contains the digest of its own text, which detects every change.

Versions are MAJOR.MINOR. A newer minor version may add fields, which `parse` ignores. It refuses newer major versions.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tfrecord_io.errors import ManifestError, ReaderError, SchemaError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import WRONG, items, mapping, text
from tfrecord_io.format.ledger import (
    FILTERED,
    HELD_OUT,
    NOT_HELD_OUT,
    LabelRange,
    Ledger,
    Shard,
    Shards,
    Split,
    is_filtered,
)
from tfrecord_io.format.manifest_types import (
    REMAKE,
    Compression,
    Generation,
    Manifest,
    TokenizerFacts,
    contradictions,
    folder_and_name,
    former_name,
    shard_name,
)
from tfrecord_io.schema import Feature, Schema
from tfrecord_io.shown import without_secrets

__all__ = [
    "FILE_NAME",
    "FILTERED",
    "FORMAT",
    "FORMAT_VERSION",
    "HELD_OUT",
    "MOST_BYTES",
    "NOT_HELD_OUT",
    "REMAKE",
    "Compression",
    "Generation",
    "LabelRange",
    "Ledger",
    "Manifest",
    "Shard",
    "Shards",
    "Split",
    "TokenizerFacts",
    "digest",
    "dump",
    "folder_and_name",
    "former_name",
    "is_filtered",
    "parse",
    "shard_name",
]

FORMAT = "prep-tfrecords"
FORMAT_VERSION = "1.0"
FILE_NAME = "manifest.json"
# A million shards take 170 MB.
MOST_BYTES = 256 << 20
# Of a shard's entry, without its name.
_SHARD_BYTES = 200

_UPGRADE = "install a release of prep-tfrecords that reads it"
# The field with the digest of all other fields, even unknown ones.
_SEAL = "sha256"
_SURROGATE = re.compile(rb"\\u[dD]")
_VERSION = re.compile(r"([0-9]{1,9})\.[0-9]{1,9}\Z")


def digest(manifest: Manifest) -> str:
    """Return the SHA-256 of the canonical text: equal for equal datasets."""
    return hashlib.sha256(dump(manifest)).hexdigest()


def dump(manifest: Manifest) -> bytes:
    """Return the canonical UTF-8 text: sorted keys, two spaces, lists of plain values on one line."""
    document = _to_json(manifest)
    return _canonical({**document, _SEAL: _seal(document)})


def has_room(names: Mapping[str, int]) -> bool:
    """Return whether a manifest can hold this many shards. `names`: the number of shards by typical name."""
    return sum((len(name) + _SHARD_BYTES) * shards for name, shards in names.items()) < MOST_BYTES


def parse(content: bytes | str, *, place: str = FILE_NAME) -> Manifest:
    """Parse the manifest in `content`. `place` names it in errors.

    Raises: ManifestError if the text is no manifest, has a newer major version, or contradicts itself.
    """
    document, seal = _load(content, place=place)
    _check_version(document, place=place)
    try:
        manifest = _from_json(document)
    except SchemaError as error:
        version = document["format_version"]
        ours, theirs = (int(each.partition(".")[2]) for each in (FORMAT_VERSION, version))
        if theirs > ours:  # with a newer dtype or role
            raise ManifestError(
                f"{place}: {error.cause}; it is of format {version}, this library knows {FORMAT_VERSION}",
                remedy=_UPGRADE,
            ) from error
        raise ManifestError(f"{place}: {error.cause}", remedy=REMAKE) from error
    except WRONG as error:
        raise ManifestError(
            f"{place}: {type(error).__name__} {error}, expected the fields of format {FORMAT_VERSION}", remedy=REMAKE
        ) from error
    for what in contradictions(manifest):
        raise ManifestError(f"{place}: {what}", remedy=REMAKE)
    if document.get(_SEAL, seal) != seal:  # other programs may omit it
        raise ManifestError(
            f"{place}: its sha256 is {seal}, expected {document[_SEAL]!r:.80}: it was damaged or changed by hand",
            remedy=REMAKE,
        )
    return manifest


def open_manifest(
    folder: str, name: str, *, read: Callable[..., bytes], sizes: Callable[[Collection[str]], Mapping[str, int | None]]
) -> Manifest:
    """Read the manifest `name` of a folder, and check that no shard is missing or truncated.

    `read` returns the content of a file by name, limited to `most` bytes. `sizes` returns the sizes in bytes of the
    named files, None if unknown. Both raise OSError.

    Raises:
        ReaderError: there is no manifest, or a shard is missing or has another size.
        ManifestError: the manifest is invalid or has a newer major version.
    """
    place, output = f"{folder.rstrip('/')}/{name}", "name the folder that `prep-tfrecords build --output` wrote"
    try:
        manifest = parse(read(name, most=MOST_BYTES + 1), place=place)
        split_of = {shard: split for split, each in manifest.splits.items() for shard in each.columns.name}
        found = sizes(split_of)
    except FileNotFoundError as error:
        # Object stores have no folders.
        no_folder = "://" not in folder and not os.path.isdir(folder)
        raise ReaderError(
            f"{folder}: there is no such folder, expected a finished dataset"
            if no_folder
            else f"{place}: there is no manifest, expected the folder of a finished dataset",
            remedy=f"{output}; an interrupted build has no manifest yet: run the same command again and it continues",
        ) from error
    except NotADirectoryError as error:
        raise ReaderError(
            f"{folder}: this is no folder, expected a finished dataset", remedy=f"{output}, and no file in it"
        ) from error
    except OSError as error:
        raise ReaderError(
            f"{place}: cannot be read ({type(error).__name__}: {without_secrets(str(error))})",
            remedy="check the path, and that this machine may read it",
        ) from error
    every = (split.columns for split in manifest.splits.values())
    expected = {name: size for each in every for name, size in zip(each.name, each.num_bytes, strict=True)}
    if wrong := sorted(shard for shard, num_bytes in expected.items() if found.get(shard, -1) not in (num_bytes, None)):
        first, more = wrong[0], f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        what = f"has {found[first]} bytes" if first in found else "is missing"
        raise ReaderError(
            f"{folder}: shard {first} of split {split_of[first]!r} {what}{more}, "
            f"expected {expected[first]} bytes by the manifest",
            remedy=f"run `prep-tfrecords verify {folder} --repair`, which makes it again, or copy the folder again as "
            "a whole",
        )
    return manifest


def _canonical(document: Mapping[str, Any]) -> bytes:
    return (_text(document, "\n") + "\n").encode()


def _text(value: Any, line: str) -> str:
    inner = f"{line}  "
    if isinstance(value, Mapping) and value:
        fields = (f"{json.dumps(name, ensure_ascii=False)}: {_text(value[name], inner)}" for name in sorted(value))
        return f"{{{inner}{f',{inner}'.join(fields)}{line}}}"
    if isinstance(value, list | tuple) and json_fields.has_nested(value):
        return f"[{inner}{f',{inner}'.join(_text(each, inner) for each in value)}{line}]"
    return json.dumps(value, ensure_ascii=False)


def _seal(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical({name: value for name, value in document.items() if name != _SEAL})).hexdigest()


def _seal_of(content: bytes | str, document: Mapping[str, Any]) -> str:
    """Return the digest of the other fields; for canonical text, in a third of the time.

    Raises: ValueError for half a surrogate pair, written as an escape.
    """
    content, stored = content.encode() if isinstance(content, str) else content, document.get(_SEAL)
    head, line, rest = content.partition(f'\n  "{_SEAL}": "{stored}",'.encode())
    if line and not _SURROGATE.search(content) and hashlib.sha256(head + rest).hexdigest() == stored:
        return str(stored)
    return _seal(document)


def _to_json(manifest: Manifest) -> dict[str, Any]:
    plain = ("name", "fingerprint", "label_names", "compression", "index_stride")
    objects = ("layout", "source", "options", "engines", "versions")
    generations = [dataclasses.asdict(each) for each in manifest.generations]
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **{name: getattr(manifest, name) for name in plain},
        **{name: dict(getattr(manifest, name)) for name in objects},
        "features": [dataclasses.asdict(feature) for feature in manifest.schema.features],
        "tokenizer": dataclasses.asdict(manifest.tokenizer),
        "splits": {name: _split_json(split) for name, split in manifest.splits.items()},
        **({"generations": generations} if generations else {}),
    }


def _split_json(split: Split) -> dict[str, Any]:
    labels = dataclasses.asdict(split.labels) if split.labels else {}
    return {
        "num_examples": split.num_examples,
        "num_bytes": split.num_bytes,
        "num_tokens": split.num_tokens,
        "ledger": split.ledger.to_json(),
        "shards": split.columns.to_json(),
        **({"labels": {name: value for name, value in labels.items() if value is not None}} if labels else {}),
    }


def _load(content: bytes | str, *, place: str) -> tuple[dict[str, Any], str]:
    if len(content) > MOST_BYTES:
        raise ManifestError(f"{place}: more than {MOST_BYTES >> 20} MiB, the limit of a manifest", remedy=REMAKE)
    try:
        document = json_fields.load(content)
        seal = _seal_of(content, document) if isinstance(document, dict) else ""
    except ValueError as error:
        raise ManifestError(f"{place}: not JSON ({error})", remedy=REMAKE) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ManifestError(
            f'{place}: not a manifest of this library, expected a JSON object with "format": "{FORMAT}"',
            remedy="name the folder that `prep-tfrecords build --output` wrote",
        )
    return document, seal


def _check_version(document: dict[str, Any], *, place: str) -> None:
    version = document.get("format_version")
    match = _VERSION.match(version) if isinstance(version, str) else None
    if match is None:
        raise ManifestError(f"{place}: format version {version!r}, expected 'MAJOR.MINOR'", remedy=REMAKE)
    ours = int(FORMAT_VERSION.partition(".")[0])
    if int(match.group(1)) != ours:
        raise ManifestError(f"{place}: format version {version}, this library reads version {ours}.x", remedy=_UPGRADE)


def _from_json(document: Mapping[str, Any]) -> Manifest:
    # Fields are required even if they have a default in Python.
    names = [each.name for each in dataclasses.fields(Manifest) if each.name not in ("schema", "generations")]
    given = {name: document[name] for name in [*names, *({"generations"} & {*document})]}
    schema = Schema(tuple(_feature(mapping(each)) for each in items(document["features"])))
    return Manifest(schema=schema, **json_fields.object_of(Manifest, given, given))


def _feature(fields: Mapping[str, Any]) -> Feature:
    unchecked = {name: fields[name] for name in ("dtype", "role", "constant")}
    shape = tuple(items(fields["shape"]))
    return Feature(name=text(fields["name"]), meaning=text(fields["meaning"]), shape=shape, **unchecked)
