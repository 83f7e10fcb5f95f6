"""Predictions of `span`: the answer to each question, one row for each source row, from the best of its windows.

column        type     meaning
window        int32    the window that has the answer, or the best one
answer        string   its text as the tokenizer writes it; null for no answer
answer_start  int32    its first character in the source's text; null for no answer
answer_end    int32    the character behind its last one
score         float32  sum of the logits of its first and last token
none_score    float32  the lowest score of no answer in any window; the answer's is above it
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from keras import ops

from pipelines.train.metrics import answers
from pipelines.train.predict.predictors.base import Call, Predictor
from tfrecord_io.objectives.tokens import required

__all__ = ["SpanPredictor"]

_ANSWER = ("answer", "answer_start", "answer_end")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanPredictor(Predictor):
    """Predicts where an answer is."""

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self.load_tokenizer()

    @functools.cached_property
    def _characters(self) -> tuple[str, str]:
        explained = {"objective": "predicting answers", "remedy": "build the data with --layout qa"}
        return required(self.manifest, "char_starts", **explained), required(self.manifest, "char_ends", **explained)

    def device_features(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: features[name] for name in (*self.tokens.inputs, *self._characters)}

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        starts, ends = self._characters
        return answers.best_spans(ops.cast(call(features), "float32"), features[ends] > features[starts])

    def columns(self, outputs: Mapping[str, np.ndarray], features: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
        first, last = outputs["first"], outputs["last"]
        rows = np.arange(len(first))
        spans = zip(features[self.tokens.ids], first.tolist(), last.tolist(), strict=True)
        texts = [str(self._tokenizer.decode(ids[start : stop + 1].tolist())).strip() for ids, start, stop in spans]
        starts, ends = (features[name] for name in self._characters)
        return {
            "answer": pa.array(texts, pa.string()),
            "answer_start": pa.array(starts[rows, first], pa.int32()),
            "answer_end": pa.array(ends[rows, last], pa.int32()),
            "score": pa.array(outputs["score"], pa.float32()),
            "none_score": pa.array(outputs["none"], pa.float32()),
        }

    def joined(self, table: pa.Table) -> pa.Table:
        """The best answer of each row's windows, or none: see `metrics.answers`."""
        rows, scores, none = (table[name].to_numpy() for name in ("row", "score", "none_score"))
        begins = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        stops = [*begins[1:], len(rows)]
        best = [start + int(np.argmax(scores[start:stop])) for start, stop in zip(begins, stops, strict=True)]
        lowest = np.minimum.reduceat(none, begins)
        found = table.take(pa.array(best))
        found = found.set_column(found.schema.get_field_index("none_score"), "none_score", pa.array(lowest))
        answered = pa.array(scores[best] > lowest)
        for name in _ANSWER:
            kept = pc.if_else(answered, found[name], pa.scalar(None, found[name].type))
            found = found.set_column(found.schema.get_field_index(name), name, kept)
        return found
