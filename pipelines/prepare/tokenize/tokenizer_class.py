"""Finds the class of `transformers` that loads a tokenizer, without importing `AutoTokenizer` where that is possible.

`AutoTokenizer` loads any, but importing it makes `transformers` read its 1,600 model files a second time: 0.3 CPU
seconds, a twelfth of a build of 400 rows. A folder that holds a tokenizer without a model's own class names the class
in its config, and needs nothing of that: `AutoTokenizer` would only call that class with the same arguments.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["class_for"]

# The name of that class as older releases save it, and as its documentation gives it; its own name may be another.
_GENERIC = "PreTrainedTokenizerFast"


def class_for(name: str) -> Any:
    """Return a class whose `from_pretrained` gives what that of `AutoTokenizer` gives for this hub id or folder."""
    if (config := _config_of(name)) is not None:
        from transformers import PreTrainedTokenizerFast

        if config.get("tokenizer_class") in (_GENERIC, PreTrainedTokenizerFast.__name__) and "auto_map" not in config:
            return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _config_of(name: str) -> dict[str, Any] | None:
    """Return the content of tokenizer_config.json if it alone decides the class: in a local folder with a
    tokenizer.json, and without the config of a model. Errors are left to `AutoTokenizer` to report.
    """
    folder = os.path.expanduser(name)
    if not os.path.isfile(os.path.join(folder, "tokenizer.json")) or os.path.lexists(
        os.path.join(folder, "config.json")
    ):
        return None
    try:
        config = json.loads(Path(folder, "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None
