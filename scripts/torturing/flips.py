"""Flips: whatever happens to a byte of a finished dataset, `verify` says so and names the file.

Every byte of a file gets one random bit flipped, the file is cut at every length, emptied, deleted, made one byte
longer; a shard is exchanged with another one, and its records among themselves with all checksums intact, which no
check of the framing can see. That for a plain and a compressed shard, an index, a list of rejected rows, the files for
TFDS, and a sample of the tokenizer, which is too large for every byte.

The manifest carries a digest of itself: damage to it is refused, or changes nothing but the name of that digest.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.prepare.audit import verify
from pipelines.prepare.dataset import own_files
from scripts.torturing import processes
from scripts.torturing.figures import Figure
from scripts.torturing.ground import Ground
from tfrecord_io.errors import ManifestError

__all__ = ["run"]

MANIFEST = "manifest.json"
_TOKENIZER_POSITIONS = 500
_EXCHANGES = 200
# All that a manifest holds beside its digest.
_FIELDS = frozenset(
    [
        "compression",
        "features",
        "fingerprint",
        "format",
        "format_version",
        "index_stride",
        "label_names",
        "layout",
        "name",
        "options",
        "source",
        "splits",
        "tokenizer",
        "versions",
    ]
)

Damage = tuple[str, bytes | None]


def run(ground: Ground, *, seed: int, positions: int | None = None) -> list[Figure]:
    """Damages files in `positions` places each, or in all. Returns: the figures, one for each kind of file."""
    figures = []
    for compression in ("none", "gzip"):
        recipe = ground.recipe(rows=60, shard_size="4kB", max_length=16).changed("--compression", compression)
        folder = ground.fresh("flipped")
        shutil.copytree(ground.clean(recipe).folder, folder)
        bench = _Bench(folder, draw=random.Random(f"flips {seed} {compression}"), positions=positions)
        figures += bench.shards()
        if compression == "none":
            figures += [bench.beside(), bench.manifest()]
        figures.append(bench.command_line())
        shutil.rmtree(folder)
    return figures


class _Bench:
    """A dataset that is damaged and mended again, one file at a time."""

    def __init__(self, folder: Path, *, draw: random.Random, positions: int | None) -> None:
        self._folder = folder
        self._draw = draw
        self._positions = positions
        self._kind = "gzip" if list(folder.glob("*.gz")) else "plain"
        # The largest, and another one to exchange it with.
        self._shards = sorted(folder.glob("*.tfrecord*"), key=lambda path: path.stat().st_size, reverse=True)

    def shards(self) -> list[Figure]:
        """Damage to the bytes of a shard, and exchanges that leave every checksum intact."""
        shard, other = self._shards[:2]
        size = shard.stat().st_size
        bytewise = Figure(section="flips", claim=f"{self._kind} shard: verify reports each damaged byte and cut")
        bytewise.note = f"{size:,} bytes"
        self._try(bytewise, shard, self._bytewise(shard.read_bytes(), self._positions))
        exchanged = Figure(section="flips", claim=f"{self._kind} shard: verify reports exchanged records and shards")
        self._try(exchanged, shard, self._exchanges(shard.read_bytes(), other.read_bytes()))
        return [bytewise, exchanged]

    def beside(self) -> Figure:
        """Damage to what stands beside the shards."""
        figure = Figure(section="flips", claim="index, tokenizer, TFDS files: verify reports each damaged byte and cut")
        index = self._folder / "index" / f"{self._shards[0].name}.offsets"
        tfds = [self._folder / name for name in ("dataset_info.json", "features.json", "label.labels.txt")]
        for path in (index, *tfds):
            self._try(figure, path, self._bytewise(path.read_bytes(), self._positions))
        few = min(self._positions or _TOKENIZER_POSITIONS, _TOKENIZER_POSITIONS)
        for path in sorted((self._folder / "tokenizer").iterdir()):
            self._try(figure, path, self._bytewise(path.read_bytes(), few))
        return figure

    def manifest(self) -> Figure:
        """Damage to the manifest: refused, or without any effect."""
        figure = Figure(section="flips", claim="manifest: each damaged byte and cut is refused, or changes nothing")
        path = self._folder / MANIFEST
        content = path.read_bytes()
        figure.note = f"{len(content):,} bytes"
        for what, damaged in self._bytewise(content, self._positions):
            if damaged is None:
                continue  # no manifest, no dataset: that is what a deleted one means
            path.write_bytes(damaged)
            problem = self._problem(None)
            figure.check(f"{what}: {problem}" if problem and _says(damaged) != _says(content) else "")
        path.write_bytes(content)
        return figure

    def command_line(self) -> Figure:
        """A few of these through the command line: status 1, two lines, and the file's name."""
        figure = Figure(section="flips", claim=f"{self._kind}: `prep-tfrecords verify` has status 1 and says where")
        shard = self._shards[0]
        content = shard.read_bytes()
        for what, damaged in self._draw.sample([*self._bytewise(content, 20)], 3):
            _put(shard, damaged)
            outcome = processes.run("verify", self._folder)
            named = shard.name in outcome.err
            figure.check("" if outcome.is_error and outcome.status == 1 and named else f"{what}: {outcome}")
        shard.write_bytes(content)
        outcome = processes.run("verify", self._folder)
        figure.check(f"undamaged: {outcome}" if outcome.status else "")
        return figure

    def _try(self, figure: Figure, path: Path, damages: Iterator[Damage]) -> None:
        """Does one damage after the other to a file, and puts it back in the end."""
        content = path.read_bytes()
        for what, damaged in damages:
            _put(path, damaged)
            problem = self._problem(path)
            figure.check(problem and f"{path.name}, {what}: {problem}")
        path.write_bytes(content)

    def _problem(self, path: Path | None) -> str:
        """What is wrong with verify's answer: empty if it names `path`, or, for None, anything at all."""
        try:
            manifest = own_files.read_manifest(str(self._folder))
            assert manifest is not None
            found = [each.file for each in verify.verify_files(str(self._folder), manifest) if each.problem]
        except ManifestError:
            found = [MANIFEST]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if path is None:
            return "" if found else "nothing reported"
        name = path.relative_to(self._folder).as_posix()
        return "" if any(name == file or name.startswith(f"{file}/") for file in found) else f"reported: {found}"

    def _bytewise(self, content: bytes, positions: int | None) -> Iterator[Damage]:
        for place in _places(len(content), positions):
            bit = 1 << self._draw.randrange(8)
            flipped = bytearray(content)
            flipped[place] ^= bit
            yield f"bit {bit:#04x} of byte {place} flipped", bytes(flipped)
        for length in _places(len(content), positions):
            yield f"cut to {length} bytes", content[:length]
        yield "one byte more", content + b"\0"
        yield "deleted", None

    def _exchanges(self, content: bytes, other: bytes) -> Iterator[Damage]:
        yield "another shard in its place", other
        records = _records(_unpacked(content))
        pairs = [(i, j) for j in range(len(records)) for i in range(j) if records[i] != records[j]]
        for first, second in self._draw.sample(pairs, min(len(pairs), self._positions or _EXCHANGES)):
            swapped = list(records)
            swapped[first], swapped[second] = records[second], records[first]
            yield f"records {first} and {second} exchanged", self._packed(b"".join(swapped))
            copied = list(records)
            copied[first] = records[second]
            yield f"record {second} in place of record {first} too", self._packed(b"".join(copied))

    def _packed(self, content: bytes) -> bytes:
        if self._kind == "plain":
            return content
        packer = zlib.compressobj(wbits=31)
        return packer.compress(content) + packer.flush()


def _places(size: int, positions: int | None) -> list[int]:
    """All of them, or so many at even distances."""
    if positions is None or positions >= size:
        return list(range(size))
    return [place * size // positions for place in range(positions)]


def _put(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


def _unpacked(content: bytes) -> bytes:
    return zlib.decompress(content, wbits=31) if content[:2] == b"\x1f\x8b" else content


def _records(content: bytes) -> list[bytes]:
    """Whole records with their frames: 8 bytes of length, 4 of its crc, the data, 4 of its crc."""
    found = []
    while content:
        size = 16 + struct.unpack_from("<Q", content)[0]
        found.append(content[:size])
        content = content[size:]
    return found


def _says(manifest: bytes) -> dict[str, Any]:
    """What a manifest holds, without its digest of itself, by whatever name."""
    return {name: value for name, value in json.loads(manifest).items() if name in _FIELDS}
