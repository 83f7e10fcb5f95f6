"""Predictions of `tokens`: the class of each labelled token, with the word that it begins.

    column          type           one entry for each token that has a label of its own in the dataset
    words           list<string>   the token with those that continue it, as text
    predictions     list<string>   its likeliest class
    prediction_ids  list<int32>    its number
    scores          list<float32>  its probability
    labels          list<string>   the class in the dataset

Words are written as the tokenizer gives them back, so a lowercasing one gives them in lower case. Words that
`--max-length` cut away have no token, and no entry. With `--label-all-tokens` each token is an entry.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from keras import ops

from pipelines.train.predict.predictors.base import Call, Predictor
from pipelines.train.predict.predictors.classify import names_of
from tfrecord_io.objectives.tokens import required

__all__ = ["TokenPredictor"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenPredictor(Predictor):
    """Predicts a class for each token that has one."""

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self.load_tokenizer()

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        chances_BLC = ops.softmax(ops.cast(call(features), "float32"))
        ids_BL = ops.argmax(chances_BLC, axis=-1)
        return {"ids": ids_BL, "scores": ops.max(chances_BLC, axis=-1)}

    def columns(self, outputs: Mapping[str, np.ndarray], features: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
        explained = {"objective": "predicting tokens", "remedy": "build the data with --layout tokens"}
        marks_NL = features[required(self.manifest, "token_label_mask", **explained)] > 0
        labels_NL = features[required(self.manifest, "token_labels", **explained)]
        counts, names = marks_NL.sum(axis=1), self.trained.label_names
        predicted, given = outputs["ids"][marks_NL], labels_NL[marks_NL]
        rows = zip(features[self.tokens.ids], self._belonging(features, marks_NL), marks_NL, strict=True)
        words = [word for ids, belonging, marks in rows for word in self._words(ids, belonging, marks)]
        return {
            "words": _lists(pa.array(words, pa.string()), counts),
            "predictions": _lists(names_of(predicted, names), counts),
            "prediction_ids": _lists(pa.array(predicted, pa.int32()), counts),
            "scores": _lists(pa.array(outputs["scores"][marks_NL], pa.float32()), counts),
            "labels": _lists(names_of(given, names), counts),
        }

    def _belonging(self, features: Mapping[str, np.ndarray], marks_NL: np.ndarray) -> np.ndarray:
        """Which tokens are part of a word, bool [N, L]: not padding and not special, unless a word begins with them."""
        special_NL = np.isin(features[self.tokens.ids], self.manifest.tokenizer.special_ids)
        return ((features[self.tokens.mask] > 0) & ~special_NL) | marks_NL

    def _words(self, ids_L: np.ndarray, belonging_L: np.ndarray, marks_L: np.ndarray) -> list[str]:
        """The text of each marked token up to the next one."""
        starts = np.flatnonzero(marks_L)
        spans = zip(starts, [*starts[1:], len(ids_L)], strict=True)
        runs = [ids_L[start:stop][belonging_L[start:stop]].tolist() for start, stop in spans]
        return [str(self._tokenizer.decode(run, clean_up_tokenization_spaces=False)).strip() for run in runs]


def _lists(values: pa.Array, counts: np.ndarray) -> pa.Array:
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values)
