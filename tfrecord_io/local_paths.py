"""Resolve local paths, and check a stranger's files before they are copied into what you publish."""

import os
import pathlib
import stat

from tfrecord_io.errors import ReaderError

_SCHEMES = ("file://", "local://")

# Suffixes of the files that `save_pretrained` of any tokenizer of `transformers` writes.
_TOKENIZERS = (".json", ".txt", ".model", ".jinja", ".spm", ".codes", ".tiktoken", ".tokenizer")


def local_path(name: str) -> str | None:
    """Return the absolute local path of a name, by its form alone; None for an address (gs://bucket/out).

    `~`, empty parts and `.` are resolved; `..` stays, since it may follow a link.
    """
    for scheme in _SCHEMES:
        name = name.removeprefix(scheme)
    return None if "://" in name else str(pathlib.Path(os.getcwd(), os.path.expanduser(name)))


def is_tokenizers(name: str) -> bool:
    """Return whether a file of this name may belong to a tokenizer."""
    return name.endswith(_TOKENIZERS) and not name.startswith(".")


def require_regular(path: str) -> None:
    """Raise ReaderError if a local path is a link, in a linked folder or no file: it could expose a file of yours."""
    local = local_path(path)
    if local is None or not os.path.lexists(local):
        return
    if os.path.islink(os.path.dirname(local)) or not stat.S_ISREG(os.lstat(local).st_mode):
        raise ReaderError(
            f"{path}: a link, or no file, expected a file of the folder's own",
            remedy=f"if its content may be published, make a copy without links: cp -rL {os.path.dirname(path)} COPY",
        )
