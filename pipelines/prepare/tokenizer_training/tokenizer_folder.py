"""Folder of a trained tokenizer, as `save_pretrained` of transformers writes it, and a record of its training.

    DIR/tokenizer.json            the tokenizer
    DIR/tokenizer_config.json     special tokens by role, limit, padding side, names of model inputs
    DIR/special_tokens_map.json   the special tokens once more, for older releases of transformers
    DIR/chat_template.jinja       if one was given
    DIR/training.json             how it was trained, and the digests of the other files; written first without
                                  them, and last with them

The files are written here, not by transformers, so that they do not depend on its release. The class in the config is
the one that loads tokenizer.json as it is.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from pipelines.prepare import storage
from pipelines.prepare.tokenizer_training.styles import StyleTemplate
from tfrecord_io.errors import OutputError

RECORD = "training.json"
_MAKER = "prep-tfrecords tokenizer"
_OWN = frozenset({RECORD, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"})
_FLAGS = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
# What transformers itself writes for a tokenizer without a limit.
_NO_LIMIT = int(1e30)


def files_of(
    tokenizer: Tokenizer, template: StyleTemplate, *, max_length: int | None, chat_template: str | None
) -> dict[str, bytes]:
    """Return the content of the tokenizer's files by name."""
    own = [token for token in template.special if token not in template.roles.values()]
    special = {**template.roles, **({"additional_special_tokens": own} if own else {})}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length or template.max_length or _NO_LIMIT,
        "model_input_names": list(template.input_names),
        "padding_side": template.padding_side,
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(number): {flag: getattr(token, flag) for flag in _FLAGS}
            for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
        },
        **special,
    }
    files = {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": _dump(config),
        "special_tokens_map.json": _dump(special),
    }
    return {**files, **({"chat_template.jinja": chat_template.encode()} if chat_template else {})}


def check(folder: str, *, overwrite: bool) -> None:
    """Check that a tokenizer may be written to the folder, and change nothing.

    Raises: OutputError if it holds a tokenizer and `overwrite` is not set, or anything else.
    """
    names = storage.list_names(folder)
    if not names:
        return
    if not _is_own(folder, names):
        raise OutputError(
            f"{folder}: holds {', '.join(names[:3])}{' …' if len(names) > 3 else ''}, expected an empty or new folder",
            remedy="choose another --output",
        )
    if not overwrite:
        raise OutputError(
            f"{folder}: there is a tokenizer already", remedy="choose another --output, or replace it with --overwrite"
        )


def write(folder: str, files: Mapping[str, bytes], record: Mapping[str, Any], *, overwrite: bool) -> None:
    """Write the files, and the record of the training with their digests. Raises: as `check`."""
    check(folder, overwrite=overwrite)
    storage.make_folder(folder)
    # By this record the remains of a killed run are known as ours, and a tokenizer being replaced as incomplete.
    storage.write_bytes(storage.join(folder, RECORD), _dump({"made_by": _MAKER, "complete": False}), inside=folder)
    for name in storage.list_names(folder):
        if name != RECORD and name not in files:
            storage.delete(storage.join(folder, name), inside=folder)
    for name, content in files.items():
        storage.write_bytes(storage.join(folder, name), content, inside=folder)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    whole = {"made_by": _MAKER, "complete": True, **record, "sha256": digests}
    storage.write_bytes(storage.join(folder, RECORD), _dump(whole), inside=folder)


def _is_own(folder: str, names: list[str]) -> bool:
    if RECORD not in names or not _OWN.issuperset(names):
        return False
    try:
        record = json.loads(storage.read_bytes(storage.join(folder, RECORD)))
    except (ValueError, FileNotFoundError):
        return False
    return isinstance(record, dict) and record.get("made_by") == _MAKER


def _dump(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
