"""Resolve local paths, and check that files of a tokenizer expose no other files when they are copied."""

import json
import os
import pathlib
import re
import stat
from collections.abc import Iterator
from typing import Any

from tfrecord_io.errors import ReaderError

_SCHEMES = ("file://", "local://")

# Suffixes of tokenizer files in `transformers`.
_TOKENIZERS = (".json", ".txt", ".model", ".jinja", ".spm", ".codes", ".tiktoken", ".tokenizer")

# Files with arguments of a tokenizer class, and their entries that `transformers` never opens as files.
ARGUMENTS = ("tokenizer_config.json", "special_tokens_map.json")
_TEXTS = re.compile(r"chat_template|name_or_path|special_tokens_map_file|added_tokens_decoder|\w+_tokens?")


def local_path(name: str) -> str | None:
    """Return the absolute path of a local file or folder, or None for an address such as gs://bucket/out.

    `..` stays in the path, since the part before it may be a link.
    """
    for scheme in _SCHEMES:
        name = name.removeprefix(scheme)
    return None if "://" in name else str(pathlib.Path(os.getcwd(), os.path.expanduser(name)))


def is_tokenizers(name: str) -> bool:
    return name.endswith(_TOKENIZERS) and not name.startswith(".")


def require_regular(path: str) -> None:
    """Raise ReaderError if a local path exists, but is a link, no file, or in a folder that is a link."""
    local = local_path(path)
    if local is None or not os.path.lexists(local):
        return
    if os.path.islink(os.path.dirname(local)) or not stat.S_ISREG(os.lstat(local).st_mode):
        raise ReaderError(
            f"{path} is a link or not a file, expected a regular file in this folder",
            remedy=f"if its content may be published, copy it without links: cp -rL {os.path.dirname(path)} COPY",
        )


def file_outside(folder: str) -> str | None:
    """Return a description of a setting in a tokenizer's folder that names an existing file outside, or None.

    `transformers` opens such files ("vocab", "merges"), and saves their content with the tokenizer.
    """
    for name in ARGUMENTS:
        try:
            settings = json.loads(pathlib.Path(folder, name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # loading the tokenizer reports the error
            continue
        for key, value in settings.items() if isinstance(settings, dict) else ():
            if _TEXTS.fullmatch(key):
                continue
            for path in (os.path.join(base, text) for text in texts_in(value) for base in ("", folder)):
                if os.path.lexists(path) and not os.path.isdir(path) and not is_inside(path, folder):
                    return f"{key!r} in {name} names {path}"
    return None


def is_inside(path: str, folder: str | os.PathLike[str]) -> bool:
    """Return whether a path, with links resolved, is inside `folder`, or inside the `blobs` of its Hub cache."""
    roots = map(os.path.realpath, (folder, os.path.join(folder, "..", "..", "blobs")))
    return any(os.path.commonpath([root, os.path.realpath(path)]) == root for root in roots)


def texts_in(value: Any) -> Iterator[str]:
    """Yield all strings in parsed JSON, except the names of fields."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(item)
