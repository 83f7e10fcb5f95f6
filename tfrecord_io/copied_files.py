"""Files that are copied out of folders that may come from strangers, into what the user will publish."""

from __future__ import annotations

import os
import stat

from tfrecord_io.errors import ReaderError
from tfrecord_io.local_paths import local_path

__all__ = ["is_tokenizers", "require_regular"]

# Of the files that `save_pretrained` of any tokenizer of `transformers` writes.
_TOKENIZERS = (".json", ".txt", ".model", ".jinja", ".spm", ".codes", ".tiktoken", ".tokenizer")


def is_tokenizers(name: str) -> bool:
    """Return whether a tokenizer may have a file of this name."""
    return name.endswith(_TOKENIZERS) and not name.startswith(".")


def require_regular(path: str) -> None:
    """Raise ReaderError if a local path leads, by a link in its folder or as it, to a file that may be one of yours."""
    local = local_path(path)
    if local is None or not os.path.lexists(local):
        return
    if os.path.islink(os.path.dirname(local)) or not stat.S_ISREG(os.lstat(local).st_mode):
        raise ReaderError(
            f"{path}: a link, or no file, expected a file of the folder's own",
            remedy=f"if its content may be published, make a copy without links: cp -rL {os.path.dirname(path)} COPY",
        )
