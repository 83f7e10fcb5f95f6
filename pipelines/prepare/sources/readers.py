"""Which files of a folder `datasets` would read: it counts the suffixes of each split, takes the reader of the one that
most files have, and leaves out what that reader does not know.

    a.jsonl b.jsonl notes.txt        the reader json, without notes.txt
    a.jsonl.gz                       the reader json: each suffix counts
    B.JSONL                          nobody's: suffixes are lower case
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence

__all__ = ["READERS", "known", "read_of"]

# What readers of other things know: pictures, sounds, molecules and so on.
_OTHERS = """
.3g2 .3gp .afa .aiff .apng .asf .au .avi .avr .blp .bmp .bufr .bw .caf .cif .conll .conllu .cur .dcx .dds .dib
.emf .ent .eps .eval .f4v .fa .faa .fasta .fastq .ffn .fit .fits .flac .flc .fli .flv .fna .fq .frn .ftc .ftu
.gb .gbk .gbr .genbank .gif .glb .gltf .grib .h5 .hdf5 .htk .icb .icns .ico .iim .im .ircam .j2c .j2k .jfif .jp2
.jpc .jpe .jpeg .jpf .jpg .jpx .lance .m4v .mat4 .mat5 .md .mkv .mmcif .mov .mp3 .mp4 .mpc2k .mpeg .mpg .msp
.mxf .nii .nist .nut .ogg .ogm .opus .paf .pbm .pcd .pcx .pdb .pdf .pgm .ply .png .pnm .ppm .ps .psd .pvf .pxr
.ras .raw .rf64 .rgb .rgba .sd2 .sds .sgi .stl .svx .tar .tga .tif .tiff .toml .tsfile .vda .voc .vortex .vst
.w64 .wav .wavex .webm .webp .wma .wmf .wmv .wve .xbm .xi .xml .xpm
"""
# The reader of each suffix, by the name that `datasets` has for it; those that are not ours have none.
READERS = {
    ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet",
    ".geoparquet": "parquet", ".gpq": "parquet", ".arrow": "arrow", ".txt": "text",
    **dict.fromkeys(_OTHERS.split(), ""),
}  # fmt: skip
_ALLOWED = frozenset({*READERS, ".zip", ".idx", ".manifest", ".txn"})
# What is counted last.
_METADATA = frozenset({"instruction.md", "latest_version_hint.json", "metadata.csv", "metadata.jsonl",
                       "metadata.parquet", "task.toml"})  # fmt: skip
# Where as many files have one suffix as another.
_FAVOURITES = (".parquet", ".lance", ".vortex", ".arrow", ".jsonl", ".json", ".csv")


def known(name: str) -> bool:
    """Whether `datasets` has a reader for a file of this name."""
    return any(suffix in _ALLOWED for suffix in _suffixes(name))


def read_of(splits: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The files of each split that would be read; empty if `datasets` would refuse them all: it wants one reader."""
    seen = {split: [name for name in names if known(name)] for split, names in splits.items()}
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
