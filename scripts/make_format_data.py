"""Make tests/data/format-VERSION: a small dataset of every layout, written by the release that fixed the format.

    python scripts/make_format_data.py

Later versions must read, verify, trace and append to these files (tests/project/test_released_formats.py). So run this
once per major or minor version of the format, and never after its release.
"""

import hashlib
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import numpy as np

# `python scripts/make_format_data.py` puts scripts/ on the path, but not the repository, which holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tfrecord_io import manifest, random_access

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "tests" / "data" / f"format-{manifest.FORMAT_VERSION}"
_ROWS = 12
# By folder: the example that provides the first rows as source, the tokenizer's example, and the options.
DATASETS = {
    "pad": ("reviews", "reviews", "--label-column label --max-length 16"),
    "windows": ("reviews", "reviews", "--max-length 16 --stride 4"),
    "buckets": ("reviews", "reviews", "--max-length 32 --bucket-lengths 16,32"),
    "gzip": ("reviews", "reviews", "--max-length 16 --compression gzip"),
    "concat": ("reviews", "chats", "--layout concat --max-length 32"),
    "pack": ("reviews", "chats", "--layout pack --max-length 64"),
    "chat": ("chats", "chats", "--layout chat --max-length 128"),
    "preference": ("preferences", "chats", "--layout preference --keep-column margin --max-length 96"),
    "seq2seq": ("translations", "chats", "--layout seq2seq --text-column en --target-column de --max-length 32"),
    "tokens": ("tags", "reviews", "--layout tokens --max-length 32"),
    "qa": ("questions", "reviews", "--layout qa --text-column question --text-column context --max-length 48"),
}


def arguments(name: str, *, folder: pathlib.Path, output: pathlib.Path) -> list[str]:
    """Return arguments of `prep-tfrecords` that build dataset `name` from the sources and tokenizers in `folder`."""
    example, tokenizer, options = DATASETS[name]
    paths = ["--tokenizer", str(folder / "tokenizers" / tokenizer), "--output", str(output)]
    # Small shards, so that there are several.
    return ["build", str(folder / "sources" / example), *paths, *options.split(), "--shard-size", "1kB"]


def main() -> int:
    """Make the folder of the current format version again, and return the exit status."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    for example in sorted({example for example, _, _ in DATASETS.values()}):
        source = FOLDER / "sources" / example
        source.mkdir(parents=True)
        with (REPOSITORY / "examples" / example / "train.jsonl").open(encoding="utf-8") as lines:
            (source / "train.jsonl").write_text("".join(itertools.islice(lines, _ROWS)), encoding="utf-8")
    for example in ("reviews", "chats"):
        command = [sys.executable, f"examples/{example}/train_tokenizer.py", str(FOLDER / "tokenizers" / example)]
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.DEVNULL)
    for name in DATASETS:
        command = arguments(name, folder=FOLDER, output=FOLDER / name)
        subprocess.run([sys.executable, "-m", "prep_tfrecords", *command, "--quiet"], env=environment, check=True)
        _forget_where(FOLDER / name)
    written = {name: digests(FOLDER / name) for name in DATASETS}
    (FOLDER / "digests.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


def digests(dataset: pathlib.Path) -> dict[str, str]:
    """Return the SHA-256 of all values of each feature in split "train", by feature name."""
    sha256s: dict[str, Any] = {}
    opened = random_access.open(dataset)
    lengths = opened.manifest.bucket_lengths
    for part in map(opened.bucket, lengths) if lengths else [opened]:
        for row in part["train"]:
            for name, values in row.items():
                sha256s.setdefault(name, hashlib.sha256()).update(np.asarray(values, "<i8").tobytes())
    return {name: sha256.hexdigest() for name, sha256 in sha256s.items()}


def _forget_where(dataset: pathlib.Path) -> None:
    """Replace this checkout's path in source.json, which `trace` and an append read, by a neutral path."""
    for path in dataset.rglob("source.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert str(REPOSITORY) in json.dumps(content)
        path.write_text(json.dumps(content).replace(str(REPOSITORY), "/checkout") + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
