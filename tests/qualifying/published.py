"""Published tokenizers: folders on this disk, and those that MaxText's wheel on PyPI brings along (Apache-2.0)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["from_folders", "from_maxtext", "from_wheel"]

_WHEEL = "maxtext==0.2.5"
_INSIDE = "maxtext/assets/tokenizers/"
# By the ends of their names; those of others, such as Tiktoken's, `transformers` doesn't open without their model.
_CLASSES = {"gemma": "GemmaTokenizer", "llama2": "LlamaTokenizer", "mistral": "LlamaTokenizer", "def": "LlamaTokenizer"}


def from_folders(folders: Sequence[Path]) -> dict[str, Any]:
    """Open tokenizer folders; return the tokenizers by name."""
    from transformers import AutoTokenizer

    return {folder.name: AutoTokenizer.from_pretrained(folder) for folder in folders}


def from_maxtext() -> dict[str, Any]:
    """Download MaxText's wheel to a temporary folder, without what it needs, and open its tokenizers."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.12", _WHEEL]
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "download", "--dest", folder, *wanted], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return from_wheel(wheel, Path(folder))


def from_wheel(wheel: Path, folder: Path) -> dict[str, Any]:
    """Open the tokenizers in a wheel, after writing them to `folder`: SentencePiece models, and whole folders."""
    found: set[Path] = set()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inside, _, file = name.partition(_INSIDE)[2].rpartition("/")
            kind = next((each for part, each in _CLASSES.items() if part in file), None)
            if not name.startswith(_INSIDE) or not file or not (inside or kind):
                continue
            target = folder / (inside or file)
            target.mkdir(exist_ok=True)
            (target / (file if inside else "tokenizer.model")).write_bytes(archive.read(name))
            if not inside:
                (target / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
            found.add(target)
    return from_folders(sorted(found))
