"""Write a trained tokenizer's folder like `save_pretrained`, but equal with all releases of transformers."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from pipelines.prepare import storage
from pipelines.prepare.tokenizer_training.styles import StyleTemplate
from tfrecord_io.errors import OutputError

RECORD = "training.json"
_FLAGS = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
# transformers writes this for "no limit".
_NO_LIMIT = int(1e30)


def files_of(
    tokenizer: Tokenizer, template: StyleTemplate, *, max_length: int | None, chat_template: str | None
) -> dict[str, bytes]:
    """Return the tokenizer's files by name. `max_length`: None for the style's limit. `chat_template`: Jinja source."""
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
        "special_tokens_map.json": _dump(special),  # for older releases of transformers
    }
    return {**files, **({"chat_template.jinja": chat_template.encode()} if chat_template else {})}


def require_empty(folder: str) -> None:
    """Check that a folder is missing or empty. Raises: OutputError."""
    if names := storage.list_names(folder):
        raise OutputError(
            f"{folder}: the folder holds {', '.join(names[:3])}{' …' if len(names) > 3 else ''}, expected an empty or "
            "new folder",
            remedy="choose another --output, or delete its content",
        )


def write(folder: str, files: Mapping[str, bytes], record: Mapping[str, Any]) -> None:
    """Write the files, then training.json: `record` and the files' digests. Raises: as `require_empty`."""
    require_empty(folder)
    storage.make_folder(folder)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    for name, content in {**files, RECORD: _dump({**record, "sha256": digests})}.items():
        storage.write_bytes(storage.join(folder, name), content, inside=folder)


def _dump(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
