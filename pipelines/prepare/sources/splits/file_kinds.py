"""The kind of data files, which of them are certainly empty, and which files of a folder `datasets` would read.

`datasets` counts the suffixes in each split, chooses the reader of the most frequent one, and ignores files that this
reader does not support:

    a.jsonl b.jsonl notes.txt        reader json, without notes.txt
    a.jsonl.gz                       reader json: every suffix counts
    B.JSONL                          no reader: suffixes are lower case
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO, cast

from pipelines.prepare.options import paths
from pipelines.prepare.sources.files.byte_ranges import DecompressedStream, compression_suffix
from pipelines.prepare.sources.files.data_files import FileKind
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["READERS", "SEPARATORS", "common_kind", "first_records", "has_reader", "has_rows", "read_by_datasets"]

# Field separators of the kinds that have a header line.
SEPARATORS = {"csv": ",", "tsv": "\t"}
_REMEDIES = {
    **dict.fromkeys((".xlsx", ".xls"), "save the sheet as CSV, or `pandas.read_excel(…).to_parquet(…)`"),
    **dict.fromkeys((".zip", ".tar", ".tgz"), "unpack it, and name the files"),
    ".tfrecord": "this is the output of a build; name the files that the dataset is to be made from",
}
# A file with as much text has rows.
_HEAD_CHARACTERS = 1 << 16
# The field limit of Python's CSV reader, which is 128 KB by default.
_MOST_FIELD_CHARACTERS = 1 << 30
# A larger file has rows.
_MOST_EMPTY_BYTES = 1 << 16
# Errors of a damaged file; opening it for its rows reports them better.
_UNREADABLE = (SourceError, OSError, ValueError, csv.Error)


def common_kind(files: Sequence[str], *, dataset: str) -> FileKind:
    """Return the kind of all files. Raises: SourceError if they are of several kinds, or of an unknown one."""
    kinds: dict[str, list[str]] = {}
    for path in files:
        kind = paths.kind_of(path)
        if kind is None:
            raise _unknown(without_access(path))
        kinds.setdefault(kind, []).append(without_access(path))
    if len(kinds) > 1:
        found = ", ".join(f"{len(some)} {kind} (such as {posixpath.basename(some[0])})" for kind, some in kinds.items())
        globs = " or ".join(f"'{_glob(some[0], dataset=dataset)}'" for some in kinds.values())
        raise SourceError(f"{dataset}: files of several kinds: {found}, expected one", remedy=f"name {globs}")
    return cast("FileKind", next(iter(kinds)))


def has_rows(path: str, *, size: int, kind: FileKind) -> bool:
    """Return False for a text file that is certainly empty: tools write such files, and readers of `datasets` fail.

    True for Parquet and Arrow files of any size, whose footers say how many rows they have.
    """
    if size == 0:
        return False
    if "://" in path or kind in ("parquet", "arrow") or size > _MOST_EMPTY_BYTES:
        return True
    try:
        return _text_has_rows(path, kind)
    except _UNREADABLE:
        return True  # reported when the file is opened


def _text_has_rows(path: str, kind: FileKind) -> bool:
    with _open_text(path) as stream:
        head = stream.read(_HEAD_CHARACTERS)
    if len(head) == _HEAD_CHARACTERS:
        return True
    if kind == "json":
        return "".join(head.split()) not in ("", "[]")
    if kind in SEPARATORS:
        return len(first_records(io.StringIO(head, newline=""), separator=SEPARATORS[kind])) == 2
    return head != ""


def first_records(stream: TextIO, *, separator: str) -> list[list[str]]:
    """Return the fields of the first two lines of a CSV file that are not blank. Raises: csv.Error."""
    limit = csv.field_size_limit(_MOST_FIELD_CHARACTERS)
    try:
        lines = csv.reader(stream, delimiter=separator)
        filled = (fields for fields in lines if "".join(fields).strip() or len(fields) > 1)
        return list(itertools.islice(filled, 2))
    finally:
        csv.field_size_limit(limit)


@contextlib.contextmanager
def _open_text(path: str) -> Iterator[TextIO]:
    with open(path, "rb") as stored:
        suffix = compression_suffix(path)
        content = (
            io.BufferedReader(DecompressedStream(stored, suffix, shown=without_access(path))) if suffix else stored
        )
        # Bytes that are not UTF-8 are reported when the rows are read.
        with io.TextIOWrapper(content, encoding="utf-8-sig", errors="replace", newline="") as text:
            yield text


def _unknown(path: str) -> SourceError:
    suffix = posixpath.splitext(path)[1].lower()
    return SourceError(
        f"{path}: a file of an unknown kind, expected {', '.join(sorted(paths.KINDS))}, or one of these as .gz, .bz2, "
        ".xz or .zst",
        remedy=_REMEDIES.get(suffix, "convert it to one of these kinds, or name other files by a glob"),
    )


def _glob(path: str, *, dataset: str) -> str:
    """Return a glob for the files with the same suffix."""
    suffix = posixpath.basename(path).partition(".")[2]
    folder = dataset if os.path.isdir(dataset) else posixpath.dirname(path)
    return posixpath.join(folder, "**" if os.path.isdir(dataset) else "", f"*.{suffix.rpartition('.')[2]}")


# Suffixes of readers that are not supported here: pictures, sounds, molecules and so on.
_OTHERS = """
.3g2 .3gp .afa .aiff .apng .asf .au .avi .avr .blp .bmp .bufr .bw .caf .cif .conll .conllu .cur .dcx .dds .dib
.emf .ent .eps .eval .f4v .fa .faa .fasta .fastq .ffn .fit .fits .flac .flc .fli .flv .fna .fq .frn .ftc .ftu
.gb .gbk .gbr .genbank .gif .glb .gltf .grib .h5 .hdf5 .htk .icb .icns .ico .iim .im .ircam .j2c .j2k .jfif .jp2
.jpc .jpe .jpeg .jpf .jpg .jpx .lance .m4v .mat4 .mat5 .md .mkv .mmcif .mov .mp3 .mp4 .mpc2k .mpeg .mpg .msp
.mxf .nii .nist .nut .ogg .ogm .opus .paf .pbm .pcd .pcx .pdb .pdf .pgm .ply .png .pnm .ppm .ps .psd .pvf .pxr
.ras .raw .rf64 .rgb .rgba .sd2 .sds .sgi .stl .svx .tar .tga .tif .tiff .toml .tsfile .vda .voc .vortex .vst
.w64 .wav .wavex .webm .webp .wma .wmf .wmv .wve .xbm .xi .xml .xpm
"""
# The reader of each suffix by its name in `datasets`; an empty name for those that are not supported here.
READERS = {
    ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet",
    ".geoparquet": "parquet", ".gpq": "parquet", ".arrow": "arrow", ".txt": "text",
    **dict.fromkeys(_OTHERS.split(), ""),
}  # fmt: skip
_ALLOWED = frozenset({*READERS, ".zip", ".idx", ".manifest", ".txn"})
# Files that `datasets` counts only if there are no others.
_METADATA = frozenset({"instruction.md", "latest_version_hint.json", "metadata.csv", "metadata.jsonl",
                       "metadata.parquet", "task.toml"})  # fmt: skip
# The order of suffixes that equally many files have.
_FAVOURITES = (".parquet", ".lance", ".vortex", ".arrow", ".jsonl", ".json", ".csv")


def has_reader(name: str) -> bool:
    """Whether `datasets` has a reader for a file of this name."""
    return any(suffix in _ALLOWED for suffix in _suffixes(name))


def read_by_datasets(splits: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the files of each split that `datasets` would read; empty if no single reader serves all splits."""
    seen = {split: [name for name in names if has_reader(name)] for split, names in splits.items()}
    chosen = {split: _reader(names) for split, names in seen.items()}
    if len(set(chosen.values())) != 1 or None in chosen.values():
        return {}
    reader = next(iter(chosen.values()))
    suffixes = [re.escape(suffix) for suffix in (*READERS, ".zip") if READERS.get(suffix, reader) == reader]
    pattern = re.compile(rf".*({'|'.join(suffixes)})(\..+)?")
    return {split: [name for name in names if pattern.fullmatch(name)] for split, names in seen.items()}


def _reader(names: Sequence[str]) -> str | None:
    counts = Counter(
        (posixpath.basename(name) not in _METADATA, suffix.lower()) for name in names for suffix in _suffixes(name)
    )
    ordered = sorted(counts, key=lambda key: (key[0], counts[key], *_favour(key[1]), key[1]), reverse=True)
    return next((READERS[suffix] for _, suffix in ordered if suffix in READERS), None)


def _favour(suffix: str) -> tuple[bool, ...]:
    return tuple(suffix == favourite for favourite in _FAVOURITES)


def _suffixes(name: str) -> list[str]:
    return [f".{part}" for part in posixpath.basename(name).split(".")[1:]]
