"""Resolve local paths, and check a stranger's files before they are copied into your output."""

import json
import os
import pathlib
import re
import stat
from collections.abc import Iterator
from typing import Any

from tfrecord_io.errors import ReaderError

_SCHEMES = ("file://", "local://")

# Suffixes of the files of `transformers` tokenizers.
_TOKENIZERS = (".json", ".txt", ".model", ".jinja", ".spm", ".codes", ".tiktoken", ".tokenizer")


# Files with arguments for a tokenizer's class, and their entries that no code opens.
ARGUMENTS = ("tokenizer_config.json", "special_tokens_map.json")
_TEXTS = re.compile(r"chat_template|name_or_path|special_tokens_map_file|added_tokens_decoder|\w+_tokens?")


def local_path(name: str) -> str | None:
    """Return the absolute local path of a name; None for an address (gs://bucket/out).

    Resolves `~`, empty parts and `.`, but not `..`, since it may follow a link.
    """
    for scheme in _SCHEMES:
        name = name.removeprefix(scheme)
    return None if "://" in name else str(pathlib.Path(os.getcwd(), os.path.expanduser(name)))


def is_tokenizers(name: str) -> bool:
    return name.endswith(_TOKENIZERS) and not name.startswith(".")


def require_regular(path: str) -> None:
    """Raise ReaderError if a local path is a link, in a linked folder, or no file: it could expose another file."""
    local = local_path(path)
    if local is None or not os.path.lexists(local):
        return
    if os.path.islink(os.path.dirname(local)) or not stat.S_ISREG(os.lstat(local).st_mode):
        raise ReaderError(
            f"{path}: a link, or no file, expected a file of the folder's own",
            remedy=f"if its content may be published, make a copy without links: cp -rL {os.path.dirname(path)} COPY",
        )


def file_outside(folder: str) -> str | None:
    """Return the first entry of a tokenizer's settings that names an existing file outside the folder, or None.

    `transformers` opens the values of some settings ("vocab", "merges") as files and saves their content.
    """
    own = [os.path.realpath(folder), os.path.realpath(os.path.join(folder, "..", "..", "blobs"))]
    for name in ARGUMENTS:
        try:
            settings = json.loads(pathlib.Path(folder, name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # loading the tokenizer reports it
            continue
        for key, value in settings.items() if isinstance(settings, dict) else ():
            if _TEXTS.fullmatch(key):
                continue
            for path in (os.path.join(base, text) for text in _strings(value) for base in ("", folder)):
                if not os.path.lexists(path) or os.path.isdir(path):
                    continue
                if not any(os.path.commonpath([each, os.path.realpath(path)]) == each for each in own):
                    return f"{key!r} in {name} names {path}"
    return None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(each)
