"""Read and write manifest.json, which describes a finished dataset (docs/format.md)."""

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
from tfrecord_io.shown import some, without_secrets

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
# Size of a shard's entry without its name.
_SHARD_BYTES = 200

_UPGRADE = "install a release of prep-tfrecords that reads it"
_FOLDER = "give the folder that `prep-tfrecords build --output` wrote"
# Field for the digest of all other fields, known or not.
_SEAL = "sha256"
_VERSION = re.compile(r"([0-9]{1,9})\.[0-9]{1,9}\Z")


def digest(manifest: Manifest) -> str:
    """Return the SHA-256 of the manifest as `dump` writes it. Equal datasets have equal digests."""
    return hashlib.sha256(dump(manifest)).hexdigest()


def dump(manifest: Manifest) -> bytes:
    """Return the manifest as UTF-8 JSON: sorted keys, two spaces of indent, and plain lists on one line."""
    document = _to_json(manifest)
    return _canonical({**document, _SEAL: _seal(document)})


def has_room(names: Mapping[str, int]) -> bool:
    """Return whether a manifest is below the size limit. `names`: number of shards by a typical shard's file name."""
    return sum((len(name) + _SHARD_BYTES) * shards for name, shards in names.items()) < MOST_BYTES


def parse(content: bytes | str, *, place: str = FILE_NAME) -> Manifest:
    """Parse a manifest. `place`: its path, for error messages. Unknown fields are ignored.

    Raises: ManifestError if the text is not a manifest, has a newer major version, or contradicts itself.
    """
    document, seal = _load(content, place=place)
    _check_version(document, place=place)
    try:
        manifest = _from_json(document)
    except SchemaError as error:
        version = document["format_version"]
        ours, theirs = (int(number.partition(".")[2]) for number in (FORMAT_VERSION, version))
        if theirs > ours:  # the newer version may have added a dtype or role
            raise ManifestError(
                f"{place}: {error.cause}; the manifest has format {version}, this library reads {FORMAT_VERSION}",
                remedy=_UPGRADE,
            ) from error
        raise ManifestError(f"{place}: {error.cause}", remedy=REMAKE) from error
    except WRONG as error:
        problem = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ManifestError(f"{place}: invalid in format {FORMAT_VERSION}: {problem}", remedy=REMAKE) from error
    for contradiction in contradictions(manifest):
        raise ManifestError(f"{place}: {contradiction}", remedy=REMAKE)
    if document.get(_SEAL, seal) != seal:  # other programs may omit the field
        raise ManifestError(
            f"{place}: sha256 is {seal}, expected {document[_SEAL]!r:.80}: the file was damaged or edited",
            remedy=REMAKE,
        )
    return manifest


def open_manifest(
    folder: str, name: str, *, read: Callable[..., bytes], sizes: Callable[[Collection[str]], Mapping[str, int | None]]
) -> Manifest:
    """Read manifest `name` of a dataset's folder, and check the sizes of its shards.

    `read(name, most=...)` returns at most `most` bytes of a file. `sizes(names)` returns {name: size} of the files that
    exist; None is an unknown size. Both may raise OSError.

    Raises:
        ReaderError: the manifest or a shard is missing, or a shard has a wrong size.
        ManifestError: as `parse`.
    """
    place = f"{folder.rstrip('/')}/{name}"
    try:
        manifest = parse(read(name, most=MOST_BYTES + 1), place=place)
        split_of = {shard: name for name, split in manifest.splits.items() for shard in split.columns.name}
        actual = sizes(split_of)
    except FileNotFoundError as error:
        cause = f"{place}: no such file, expected the manifest of a finished dataset"
        if "://" not in folder and not os.path.isdir(folder):  # object stores have no folders
            cause = f"{folder}: no such folder, expected a finished dataset"
        remedy = f"{_FOLDER}; if the build was interrupted, run the same command again to finish it"
        raise ReaderError(cause, remedy=remedy) from error
    except NotADirectoryError as error:
        cause = f"{folder}: not a folder, expected a finished dataset"
        raise ReaderError(cause, remedy=f"{_FOLDER}, not a file inside it") from error
    except OSError as error:
        raise ReaderError(
            f"{place}: cannot be read ({type(error).__name__}: {without_secrets(str(error))})",
            remedy="check the path and your permission to read it",
        ) from error
    columns = [split.columns for split in manifest.splits.values()]
    expected = {name: size for shards in columns for name, size in zip(shards.name, shards.num_bytes, strict=True)}
    if wrong := sorted(shard for shard, size in expected.items() if actual.get(shard, -1) not in (size, None)):
        first, more = wrong[0], f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        problem = f"has {some(actual[first] or 0, 'byte')}" if first in actual else "is missing"
        raise ReaderError(
            f"{folder}: shard {first} of split {split_of[first]!r} {problem}{more}, "
            f"expected {some(expected[first], 'byte')} according to the manifest",
            remedy=f"run `prep-tfrecords verify {folder} --repair` to remake it, or copy the whole folder again",
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
        return f"[{inner}{f',{inner}'.join(_text(item, inner) for item in value)}{line}]"
    return json.dumps(value, ensure_ascii=False)


def _seal(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical({name: value for name, value in document.items() if name != _SEAL})).hexdigest()


def _to_json(manifest: Manifest) -> dict[str, Any]:
    plain = ("name", "fingerprint", "label_names", "compression", "index_stride")
    objects = ("layout", "source", "options", "engines", "versions")
    generations = [dataclasses.asdict(generation) for generation in manifest.generations]
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
        raise ManifestError(f"{place}: more than {MOST_BYTES >> 20} MiB, the size limit of a manifest", remedy=REMAKE)
    try:
        document = json_fields.load(content)
        seal = _seal(document) if isinstance(document, dict) else ""
    except ValueError as error:
        raise ManifestError(f"{place}: not JSON ({error})", remedy=REMAKE) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ManifestError(
            f'{place}: not a manifest of this library, expected a JSON object with "format": "{FORMAT}"',
            remedy=_FOLDER,
        )
    return document, seal


def _check_version(document: dict[str, Any], *, place: str) -> None:
    version = document.get("format_version")
    match = _VERSION.match(version) if isinstance(version, str) else None
    if match is None:
        raise ManifestError(f"{place}: format version {version!r}, expected 'MAJOR.MINOR'", remedy=REMAKE)
    ours = int(FORMAT_VERSION.partition(".")[0])
    if int(match.group(1)) != ours:
        cause = f"{place}: format version {version}, but this library reads version {ours}.x"
        raise ManifestError(cause, remedy=_UPGRADE)


def _from_json(document: Mapping[str, Any]) -> Manifest:
    # Fields with a default in Python are required in JSON, too.
    names = [field.name for field in dataclasses.fields(Manifest) if field.name not in ("schema", "generations")]
    fields = {name: document[name] for name in [*names, *({"generations"} & {*document})]}
    schema = Schema(tuple(_feature(mapping(feature)) for feature in items(document["features"])))
    return Manifest(schema=schema, **json_fields.object_of(Manifest, fields, fields))


def _feature(fields: Mapping[str, Any]) -> Feature:
    unchecked = {name: fields[name] for name in ("dtype", "role", "constant")}
    shape = tuple(items(fields["shape"]))
    return Feature(name=text(fields["name"]), meaning=text(fields["meaning"]), shape=shape, **unchecked)
