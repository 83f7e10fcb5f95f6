"""Predictions of `classify`: the class of each row with the probabilities of all, or a number.

column         type           classes                           numbers (float labels)
prediction     string         the likeliest class               float32: the number
prediction_id  int32          its number                        –
probabilities  list<float32>  of all classes, by number         –
label          string         that of the dataset, or null      float32
label_id       int32          its number; null for -1           –

Where rows have several classes each, `prediction` lists those of a probability above 0.5, and `label` those of the
dataset; there are no columns of numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from keras import ops

from pipelines.train.predict.predictors.base import Call, Predictor

__all__ = ["ClassPredictor", "names_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassPredictor(Predictor):
    """Predicts a class, or a number, for each row."""

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        logits = ops.cast(call(features), "float32")
        if self.trained.manifest.multi_hot_size:
            return {"values": ops.sigmoid(logits)}
        return {"values": logits[:, 0] if self.trained.regression else ops.softmax(logits)}

    def columns(self, outputs: Mapping[str, np.ndarray], features: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
        label, values_NC = self.manifest.schema.with_role("label"), outputs["values"]
        labels = None if label is None else features[label.name]
        if self.trained.regression:
            given = {} if labels is None else {"label": pa.array(labels, pa.float32())}
            return {"prediction": pa.array(values_NC, pa.float32()), **given}
        names = self.trained.label_names
        if self.trained.manifest.multi_hot_size:
            given = {} if labels is None else {"label": _lists_of(labels > 0, names)}
            probabilities = pa.array(list(values_NC), pa.list_(pa.float32()))
            return {"prediction": _lists_of(values_NC > 0.5, names), "probabilities": probabilities, **given}
        ids = np.argmax(values_NC, axis=1)
        found = {
            "prediction": names_of(ids, names),
            "prediction_id": pa.array(ids, pa.int32()),
            "probabilities": pa.array(list(values_NC), pa.list_(pa.float32())),
        }
        if labels is not None:
            given_ids = pa.array(labels, pa.int32(), mask=labels < 0)
            found |= {"label": names_of(labels, names), "label_id": given_ids}
        return found


def names_of(ids: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    """The names of class ids; null for ids that are none."""
    return pa.array([names[each] if 0 <= each < len(names) else None for each in ids.tolist()], pa.string())


def _lists_of(has_NC: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    """The names of the classes that each row has."""
    return pa.array([[names[each] for each in np.flatnonzero(row)] for row in has_NC], pa.list_(pa.string()))
