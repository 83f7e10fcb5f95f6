"""Save a copy of a tokenizer as files that load as an equal tokenizer, also in transformers 4."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.engines.base import BATTERY, HFTokenizer
from tfrecord_io import local_paths
from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

Files = dict[str, bytes]

# Instead of the class's name in transformers 5, which transformers 4 does not know.
GENERIC = "PreTrainedTokenizerFast"
_CONFIG = "tokenizer_config.json"
# Options that depend on where a tokenizer was loaded from; without them, equal tokenizers give equal files.
_WHERE_FROM = ("is_local", "local_files_only", "mistral_format")
# Attributes that `save_pretrained` leaves out if they were changed after loading.
_SETTABLE = ("padding_side", "truncation_side", "model_input_names", "split_special_tokens")


def save(tokenizer: HFTokenizer, name: str) -> tuple[HFTokenizer, Files]:
    """Convert a tokenizer to files, in memory. Return a copy loaded from the files, and the files' contents by name.

    If the tokenizer's class ignores parts of tokenizer.json, the files name the generic class instead. Raises:
    TokenizerError if no copy gives the same tokens.
    """
    files = _written(tokenizer, name)
    copy = load(files)
    backend = files.get("tokenizer.json", b"").decode()
    if tokenizer.is_fast and backend == copy.backend_tokenizer.to_str(pretty=True):
        return copy, files
    texts = [*BATTERY, " ".join(tokenizer.get_added_vocab())]
    expected = _ids(tokenizer, texts)
    if tokenizer.is_fast:
        generic = {**files, _CONFIG: _changed(files[_CONFIG], tokenizer_class=GENERIC)}
        generic_copy = load(generic)
        if _ids(generic_copy, texts) == expected:
            return generic_copy, generic
    if _ids(copy, texts) == expected:
        return copy, files
    raise TokenizerError(
        f"tokenizer {name!r} gives other tokens once it is saved and loaded again: "
        "it was changed in memory, or does not save all of its settings",
        remedy="make the change in the files of the tokenizer's folder, and give the folder as --tokenizer",
    )


def require_kind(tokenizer: HFTokenizer, name: str) -> None:
    """Check that `tokenizer` is one of `transformers`, in Rust or Python. Raises: TokenizerError."""
    from transformers import PreTrainedTokenizerBase

    # Classes that use another library, such as Mistral's, lack `is_fast`.
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or not hasattr(type(tokenizer), "is_fast"):
        raise TokenizerError(
            f"tokenizer {name!r} is a {type(tokenizer).__name__}, expected one with a tokenizer.json or Python code",
            remedy="load it with AutoTokenizer.from_pretrained(NAME, mistral_format=False), or if it is a processor, "
            "pass the processor's attribute .tokenizer",
        )


def load(files: Files) -> HFTokenizer:
    """Load a tokenizer from its files (contents by name), offline and without running code in them.

    Raises: TokenizerError.
    """
    with tempfile.TemporaryDirectory() as folder:
        write(files, folder)
        if entry := local_paths.file_outside(folder):
            raise TokenizerError(
                f"the saved tokenizer: {entry}, expected no file outside of its folder",
                remedy="if you trust the tokenizer, remove that entry from its settings",
            )
        with library_failures.raised_as(
            lambda error: TokenizerError(
                f"the saved tokenizer cannot be loaded ({type(error).__name__}: {first_line(error)})",
                remedy="run `prep-tfrecords verify --repair` on the dataset, or build it again",
            )
        ):
            return class_for(folder).from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def write(files: Mapping[str, bytes], folder: str) -> None:
    """Write files (contents by relative path) to a folder. Raises: TokenizerError if a path leads out of it."""
    for name, content in files.items():
        # Checked because a remote service may send any name.
        if {"", ".", ".."} & {*name.split("/")}:
            raise TokenizerError(
                f"the saved tokenizer has a file {name!r}, which would be outside of its folder",
                remedy="copy the dataset's folder tokenizer/ again from the original dataset",
            )
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def class_for(name: str) -> Any:
    """Return the class of `transformers` that loads a tokenizer. `name`: a Hub id or a folder.

    If a folder names a generic fast class in tokenizer_config.json and has no config.json, it is that class, because
    importing `AutoTokenizer` takes 0.3 CPU seconds. Otherwise, it is `AutoTokenizer`.
    """
    folder = Path(os.path.expanduser(name))
    config: Any = None
    if os.path.isfile(folder / "tokenizer.json") and not os.path.lexists(folder / "config.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if isinstance(config, dict) and "auto_map" not in config:
        from transformers import PreTrainedTokenizerFast

        if config.get("tokenizer_class") in (GENERIC, PreTrainedTokenizerFast.__name__):
            return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def bytes_digest(files: Mapping[str, bytes]) -> str:
    """Return a SHA-256 digest of the files' names and contents."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()


def _written(tokenizer: HFTokenizer, name: str) -> Files:
    try:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    except Exception as error:  # if the disk is full, `tokenizers` raises a plain Exception
        raise TokenizerError(
            f"tokenizer {name!r} cannot be saved to a temporary folder: {error}",
            remedy=f"free some space in {tempfile.gettempdir()}, or set TMPDIR to a folder with more space",
        ) from error
    config = json.loads(files[_CONFIG])
    values = {key: getattr(tokenizer, key, None) for key in _SETTABLE}
    saved = {key: config.get(key, getattr(type(tokenizer), key, False)) for key in _SETTABLE}
    changes: dict[str, Any] = {key: value for key, value in values.items() if value != saved[key]}
    if config.get("tokenizer_class") == "TokenizersBackend":
        changes["tokenizer_class"] = GENERIC
    if isinstance(config.get("extra_special_tokens"), list):
        changes |= {"additional_special_tokens": config["extra_special_tokens"], "extra_special_tokens": None}
    return {**files, _CONFIG: _changed(files[_CONFIG], **changes, **dict.fromkeys(_WHERE_FROM))}


def _changed(config: bytes, **changes: Any) -> bytes:
    values = json.loads(config) | changes
    kept = {key: value for key, value in values.items() if not (key in changes and value is None)}
    return (json.dumps(kept, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _ids(tokenizer: HFTokenizer, texts: list[str]) -> Any:
    try:
        with library_failures.encoding("transformers", num_texts=len(texts)):
            return tokenizer(texts, verbose=False)["input_ids"]
    except library_failures.TextsNotEncoded:  # a later step reports it
        return None
