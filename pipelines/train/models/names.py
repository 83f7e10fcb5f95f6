"""What --model may be called, and what was probably meant by a name that is none.

bert-tiny, gpt2-base …      from scratch, in the sizes of `SIZES`; t5-tiny, bart-tiny … for --task seq2seq
package.module:build        a function of the user's
bert_base_en_uncased …      a preset that KerasHub lists
hf://OWNER/NAME             or another address
a folder                    of a preset
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Iterable
from typing import Any

from tfrecord_io.errors import ConfigError

__all__ = ["SIZES", "from_scratch", "is_users", "keras_hub", "require_known"]

# Layers, heads, width. The sizes of BERT (arXiv:1810.04805, arXiv:1908.08962) and GPT-2; xl is the latter's alone.
SIZES = {
    "tiny": (2, 2, 128),
    "mini": (4, 4, 256),
    "small": (4, 8, 512),
    "medium": (8, 8, 512),
    "base": (12, 12, 768),
    "large": (24, 16, 1024),
    "xl": (48, 25, 1600),
}
_FAMILIES = ("bert", "gpt2", "t5", "bart")
_SCRATCH = {f"{family}-{size}": (family, size) for family in _FAMILIES for size in SIZES}
_USERS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)\Z")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*\Z")


def from_scratch(name: str) -> tuple[str, str] | None:
    """Family and size of a model that starts from scratch; None for any other."""
    return _SCRATCH.get(name)


def is_users(name: str) -> bool:
    """Return whether it names a function of the user's."""
    return bool(_USERS.match(name))


def require_known(name: str) -> None:
    """Raises: ConfigError if no model goes by this name, with what was probably meant."""
    if os.path.isfile(os.path.join(name, "model.json")):
        raise ConfigError(
            f"--model {name}: this is the folder of a finished training of train-tpu, expected a model to begin with",
            remedy=f"to go on with that training, give --model-dir {name} and the --model that it began with; "
            "`train-tpu predict` and `train-tpu export` take its folder",
        )
    if from_scratch(name) or is_users(name) or "://" in name or os.path.isdir(name):
        return
    presets = keras_hub(name).models.Backbone.presets
    if name in presets:
        return
    meant = _meant(name, [*_SCRATCH, *presets])
    raise ConfigError(
        f"--model {name!r}: there is no such model, expected bert-, gpt2-, t5- or bart-SIZE (SIZE: "
        f"{', '.join(SIZES)}), package.module:build, a KerasHub preset, hf://OWNER/NAME, or a folder of one",
        remedy=f"did you mean --model {' or '.join(meant)}?" if meant else "check the name, or the path",
    )


def keras_hub(name: str) -> Any:
    """The library of models. Raises: ConfigError if the model `name` needs it and it cannot be imported."""
    try:
        return importlib.import_module("keras_hub")
    except ImportError as error:
        raise ConfigError(
            f"--model {name} needs KerasHub, which cannot be imported ({error})",
            remedy="run `pip install '.[train]'`, or give your own: --model package.module:build",
        ) from error


def _meant(name: str, known: Iterable[str]) -> list[str]:
    if module := _MODULE.match(name):
        return [f"{module[1]}:build" if module[2] == "py" else f"{module[1]}:{module[2]}"]
    if _HUB_ID.match(name):
        return [f"hf://{name}"]
    return difflib.get_close_matches(name.lower(), known, n=2)
