"""Damage to finished datasets."""

from pathlib import Path


def train_shards(root: Path) -> list[Path]:
    return sorted(root.glob("*-train-*.tfrecord*"))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)
