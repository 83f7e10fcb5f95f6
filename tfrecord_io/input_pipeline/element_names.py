"""Other names for the inputs of an element, in the graph, for models that expect theirs.

KerasHub's names are those of its backbones and preprocessors (`keras_hub/src/models/bert/bert_backbone.py`,
`masked_lm_preprocessor.py`, `seq_2_seq_lm_preprocessor.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import tensorflow as tf

from tfrecord_io.errors import ReaderError

__all__ = ["Names", "renamed"]

Names = Literal["keras-hub"] | Mapping[str, str]

_KERAS_HUB = {
    "input_ids": "token_ids",
    "token_type_ids": "segment_ids",
    "attention_mask": "padding_mask",
    "masked_positions": "mask_positions",
}
_KERAS_HUB_SEQ2SEQ = {
    "input_ids": "encoder_token_ids",
    "attention_mask": "encoder_padding_mask",
    "decoder_input_ids": "decoder_token_ids",
    "decoder_attention_mask": "decoder_padding_mask",
}


def renamed(dataset: tf.data.Dataset, names: Names | None) -> tf.data.Dataset:
    """Return the dataset with other names of its inputs: a mapping of new ones by the present ones, or KerasHub's.

    Inputs without a new name keep theirs, except with "keras-hub", whose models take no others: those are left out.

    Raises: ReaderError if there is no such input, two would have one name, or KerasHub has no inputs like these.
    """
    if names is None:
        return dataset
    spec = dataset.element_spec
    inputs = spec[0] if isinstance(spec, tuple) else spec
    new = _keras_hub(inputs) if isinstance(names, str) else _mapped(inputs, names)

    def rename(*element: Any) -> Any:
        found = {new[name]: value for name, value in element[0].items() if name in new}
        return (found, *element[1:]) if element[1:] else found

    return dataset.map(rename)


def _keras_hub(inputs: Mapping[str, Any]) -> dict[str, str]:
    if "segment_ids" in inputs:
        raise ReaderError(
            "names 'keras-hub' for packed rows: KerasHub's models would take segment_ids for token types, and let "
            "documents see one another",
            remedy="build with another layout, such as concat or pad, or give a mapping of names",
        )
    known = _KERAS_HUB_SEQ2SEQ if "decoder_input_ids" in inputs else _KERAS_HUB
    return {name: known[name] for name in inputs if name in known}


def _mapped(inputs: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    if unknown := sorted(set(names) - set(inputs)):
        raise ReaderError(f"names: no input {unknown[0]!r}, expected some of {sorted(inputs)}")
    found = {name: names.get(name, name) for name in inputs}
    if len(set(found.values())) < len(found):
        raise ReaderError(f"names: two inputs would have one name, {sorted(found.values())}")
    return found
