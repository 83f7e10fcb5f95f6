"""Predictors, one class per task: convert logits to output columns, listed in docs/how-to/predict-and-export.md."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from keras import ops

from pipelines.train import metrics
from pipelines.train.config import PredictConfig
from pipelines.train.model_files import TrainedModel
from pipelines.train.predict import decoding
from tfrecord_io import objectives
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import DECODER_INPUTS, DECODER_MASK, Objective
from tfrecord_io.objectives.base import TokenFeatures, required
from tfrecord_io.objectives.labelled import start_id
from tfrecord_io.schema import Role

# From the features of B rows to logits, without dropout.
Call = Callable[[Mapping[str, Any]], Any]
Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictor(abc.ABC):
    """Runs a trained model on the rows of a dataset.

    `manifest`: of the dataset. `tokenizer`: function that loads the tokenizer, which takes a second.
    """

    config: PredictConfig
    trained: TrainedModel
    manifest: Manifest
    tokenizer: Callable[[], Any]

    @property
    def tokens(self) -> TokenFeatures:
        return TokenFeatures.of(self.manifest)

    def feature(self, role: Role) -> str:
        """Return the name of the dataset's feature with a role. Raises: ReaderError if there is none."""
        remedy = "build the data with the layout of the model's training data"
        return required(self.manifest, role, objective=f"predicting for {self.trained.task}", remedy=remedy)[0]

    @property
    def data_names(self) -> tuple[str, ...]:
        """Class names by class id in the data; the model's names if the data or the model has no names."""
        own = self.manifest.label_names
        return own if own and self.trained.manifest.label_names else self.trained.label_names

    def model_ids(self, labels: np.ndarray) -> np.ndarray:
        """Convert class ids of the data, [N], to the model's ids of the same names, int64 [N]; other values to -1."""
        ids = np.array([*map(self.trained.label_names.index, self.data_names), -1])
        return ids[np.where((labels >= 0) & (labels < len(ids) - 1), labels, -1)]

    def applied(self, objective: Objective, features: Arrays) -> Any:
        """Return the inputs, labels and weights of an objective for a batch, as NumPy arrays."""
        tensors = {name: tf.constant(values) for name, values in features.items()}
        result = objective.bind(self.manifest)(tensors, seed=tf.zeros([2], tf.int64))
        return tf.nest.map_structure(lambda values: values.numpy(), result)

    def texts(self, runs: Iterable[np.ndarray], **options: Any) -> list[str]:
        return [str(self.tokenizer().decode(run.tolist(), **options)) for run in runs]

    def check(self) -> None:
        """Check that options and data fit the task. Raises: ConfigError."""
        task = self.trained.task
        if self.config.beams > 1:
            raise ConfigError(
                f"--beams {self.config.beams} with a model for {task}, expected a model for seq2seq, or --generate N",
                remedy="leave --beams out",
            )
        if self.config.generate:
            raise ConfigError(
                f"--generate with a model for {task}, expected a model for clm", remedy="leave --generate out"
            )

    def device_features(self, features: Arrays) -> dict[str, np.ndarray]:
        """Return the arrays, by name, that `outputs` needs for a batch."""
        return {name: features[name] for name in self.tokens.inputs}

    @abc.abstractmethod
    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        """Compute tensors [B, ...] by name on the devices, from the result of `device_features`, with `keras.ops`."""

    @abc.abstractmethod
    def columns(self, outputs: Arrays, features: Arrays) -> dict[str, pa.Array]:
        """Convert the results of `outputs` to columns of the output file. `features`: of the same rows."""

    def joined(self, table: pa.Table) -> pa.Table:
        """Return the table of all output rows, in source order, with one row per source row if necessary."""
        return table


class ClassPredictor(Predictor):
    """For classify: predicts for each row a class, a list of classes (both with all probabilities), or a number."""

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        logits = ops.cast(call(features), "float32")
        if self.trained.manifest.multi_hot_size:
            return {"values": ops.sigmoid(logits)}
        return {"values": logits[:, 0] if self.trained.regression else ops.softmax(logits)}

    def columns(self, outputs: Arrays, features: Arrays) -> dict[str, pa.Array]:
        label, values_NC = self.manifest.schema.with_role("label"), outputs["values"]
        labels = None if label is None else features[label.name]
        if self.trained.regression:
            own = {} if labels is None else {"label": pa.array(labels, pa.float32())}
            return {"prediction": pa.array(values_NC, pa.float32()), **own}
        names, probabilities = self.trained.label_names, pa.array(list(values_NC), pa.list_(pa.float32()))
        if self.trained.manifest.multi_hot_size:
            own = {} if labels is None else {"label": _lists_of(labels > 0, self.data_names)}
            return {"prediction": _lists_of(values_NC > 0.5, names), "probabilities": probabilities, **own}
        ids = np.argmax(values_NC, axis=1)
        columns = {"prediction": _names_of(ids, names), "prediction_id": pa.array(ids, pa.int32())}
        columns["probabilities"] = probabilities
        if labels is not None:
            known = self.model_ids(labels)
            columns |= {"label": _names_of(known, names), "label_id": pa.array(known, pa.int32(), mask=known < 0)}
        return columns


class TokenPredictor(Predictor):
    """For tokens: predicts the class of each labelled token, with its word. Words beyond the row have no entry."""

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        chances_BLC = ops.softmax(ops.cast(call(features), "float32"))
        return {"ids": ops.argmax(chances_BLC, axis=-1), "scores": ops.max(chances_BLC, axis=-1)}

    def columns(self, outputs: Arrays, features: Arrays) -> dict[str, pa.Array]:
        marks_NL = features[self.feature("token_label_mask")] > 0
        names, predicted = self.trained.label_names, outputs["ids"][marks_NL]
        offsets = pa.array(np.concatenate([[0], np.cumsum(marks_NL.sum(axis=1))]), pa.int32())
        words = self.texts(self._words(features, marks_NL), clean_up_tokenization_spaces=False)
        values = {
            "words": pa.array(list(map(str.strip, words)), pa.string()),
            "predictions": _names_of(predicted, names),
            "prediction_ids": pa.array(predicted, pa.int32()),
            "scores": pa.array(outputs["scores"][marks_NL], pa.float32()),
            "labels": _names_of(features[self.feature("token_labels")][marks_NL], self.data_names),
        }
        return {name: pa.ListArray.from_arrays(offsets, column) for name, column in values.items()}

    def _words(self, features: Arrays, marks_NL: np.ndarray) -> Iterable[np.ndarray]:
        ids_NL = features[self.tokens.ids]
        special_NL = np.isin(ids_NL, self.manifest.tokenizer.special_ids)
        belonging_NL = ((features[self.tokens.mask] > 0) & ~special_NL) | marks_NL
        for ids, belonging, marks in zip(ids_NL, belonging_NL, marks_NL, strict=True):
            starts = np.flatnonzero(marks)
            for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
                yield ids[start:stop][belonging[start:stop]]


class SpanPredictor(Predictor):
    """For span: predicts each question's answer; null if "no answer" scores at least as high in every window."""

    def device_features(self, features: Arrays) -> dict[str, np.ndarray]:
        names = (*self.tokens.inputs, self.feature("char_starts"), self.feature("char_ends"))
        return {name: features[name] for name in names}

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        text = features[self.feature("char_ends")] > features[self.feature("char_starts")]
        return metrics.best_spans(ops.cast(call(features), "float32"), text)

    def columns(self, outputs: Arrays, features: Arrays) -> dict[str, pa.Array]:
        first, last = outputs["first"], outputs["last"]
        rows, spans = np.arange(len(first)), zip(features[self.tokens.ids], first, last, strict=True)
        texts = self.texts(ids[start : stop + 1] for ids, start, stop in spans)
        return {
            "answer": pa.array(list(map(str.strip, texts)), pa.string()),
            "answer_start": pa.array(features[self.feature("char_starts")][rows, first], pa.int32()),
            "answer_end": pa.array(features[self.feature("char_ends")][rows, last], pa.int32()),
            "score": pa.array(outputs["score"], pa.float32()),
            "none_score": pa.array(outputs["none"], pa.float32()),
        }

    def joined(self, table: pa.Table) -> pa.Table:
        rows, scores, none = (table[name].to_numpy() for name in ("row", "score", "none_score"))
        begins = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        stops = [*begins[1:], len(rows)]
        best = [start + int(np.argmax(scores[start:stop])) for start, stop in zip(begins, stops, strict=True)]
        lowest = np.minimum.reduceat(none, begins)
        answers = table.take(pa.array(best))
        columns = dict(zip(answers.column_names, answers.columns, strict=True)) | {"none_score": pa.array(lowest)}
        answered = pa.array(scores[best] > lowest)
        for name in ("answer", "answer_start", "answer_end"):
            columns[name] = pc.if_else(answered, answers[name], pa.scalar(None, answers[name].type))
        return pa.table(columns)


class TargetPredictor(Predictor):
    """For seq2seq: generates a target for each row, at most as long as the dataset's targets."""

    def check(self) -> None:
        if self.config.generate:
            super().check()

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        facts, beams, start = self.manifest.tokenizer, self.config.beams, self.trained.decoder_start
        length = self.manifest.schema[self.feature("target_ids")].num_values
        rows = features[self.tokens.ids].shape[0]
        repeated = {name: ops.repeat(features[name], beams, axis=0) for name in self.tokens.inputs}

        def next_logits(ids: Any, lengths: Any) -> Any:
            mask = ops.cast(ops.arange(length) < lengths[:, None], "int32")
            logits = call({**repeated, DECODER_INPUTS: ids, DECODER_MASK: mask})
            return decoding.of_place(logits, lengths - 1)

        first = start_id(self.manifest, start or "pad")
        ids = ops.convert_to_tensor([[first] + [facts.pad_id] * (length - 1)] * rows, dtype="int32")
        ids, lengths = decoding.beam_search(
            next_logits, ids, ops.ones([rows], "int32"), steps=length - 1, beams=beams, eos_id=facts.eos_id
        )
        return {"ids": ids, "lengths": lengths}

    def columns(self, outputs: Arrays, features: Arrays) -> dict[str, pa.Array]:
        generated = zip(outputs["ids"], outputs["lengths"], strict=True)
        targets = zip(features[self.feature("target_ids")], features[self.feature("target_mask")], strict=True)
        runs = {
            "generated": [ids[1:count] for ids, count in generated],
            "target": [ids[mask > 0] for ids, mask in targets],
        }
        return {name: pa.array(self.texts(ids, skip_special_tokens=True), pa.string()) for name, ids in runs.items()}


_LABELS, _WEIGHTS = "causal/labels", "causal/weights"


class CausalPredictor(Predictor):
    """For clm: computes each row's loss and, with --generate N, generates N tokens after the row.

    A row too long for N more tokens loses its first tokens.
    """

    def check(self) -> None:
        if not (count := self.config.generate):
            super().check()
        elif self.tokens.segments is not None:
            raise ConfigError(
                "--generate needs one text per row, but the rows of this dataset are packed",
                remedy="leave --generate out, or give a dataset that is not packed",
            )
        elif count >= (length := self.manifest.row_length):
            raise ConfigError(
                f"--generate {count}, but the model's rows have {length} tokens, including the prompt",
                remedy=f"give at most --generate {length - 1}",
            )

    def device_features(self, features: Arrays) -> dict[str, np.ndarray]:
        inputs, labels, weights = self.applied(objectives.causal_lm(), features)
        return {**inputs, _LABELS: labels, _WEIGHTS: weights}

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        weights_BL, logits_BLV = features[_WEIGHTS], ops.cast(call(features), "float32")
        losses_BL = ops.sparse_categorical_crossentropy(features[_LABELS], logits_BLV, from_logits=True)
        loss_B = ops.sum(ops.where(weights_BL > 0, losses_BL * weights_BL, 0.0), axis=1)
        losses = {"loss": loss_B, "tokens": ops.sum(weights_BL, axis=1)}
        return {**losses, **self._generated(call, features)} if self.config.generate else losses

    def _generated(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        tokens, config, end_id = self.tokens, self.config, self.manifest.tokenizer.end_id
        ids, lengths = self._prompts(features[tokens.ids], features[tokens.mask], end_id=end_id)

        def next_logits(ids: Any, lengths: Any) -> Any:
            mask = ops.cast(ops.arange(ids.shape[1]) < lengths[:, None], "int32")
            zeros = {name: ops.zeros_like(ids) for name in tokens.inputs}
            logits = call({**zeros, tokens.ids: ids, tokens.mask: mask})
            return decoding.of_place(logits, ops.maximum(lengths - 1, 0))

        ids, stops = decoding.beam_search(
            next_logits, ids, lengths, steps=config.generate, beams=config.beams, eos_id=end_id
        )
        return {"ids": ids, "from": lengths, "to": stops}

    def _prompts(self, ids_BL: Any, mask_BL: Any, *, end_id: int | None) -> tuple[Any, Any]:
        length = ids_BL.shape[1]
        inside_BL = ops.cast(mask_BL > 0, "int32")
        # A prompt has no end-of-text token, and leaves room to generate.
        stop_B = ops.max(ops.arange(1, length + 1) * inside_BL, axis=1)
        if end_id is not None:
            last_B = ops.take_along_axis(ids_BL, ops.maximum(stop_B - 1, 0)[:, None], axis=1)[:, 0]
            stop_B -= ops.cast(ops.equal(last_B, end_id) & (stop_B > 1), "int32")
        # With padding on the left, the first token is not at 0.
        first_B = ops.argmax(inside_BL, axis=1)
        count_B = ops.minimum(ops.maximum(stop_B - first_B, 0), length - self.config.generate)
        from_BL = ops.minimum((stop_B - count_B)[:, None] + ops.arange(length), length - 1)
        moved_BL = ops.take_along_axis(ids_BL, from_BL, axis=1)
        return ops.where(ops.arange(length) < count_B[:, None], moved_BL, self.manifest.tokenizer.pad_id), count_B

    def columns(self, outputs: Arrays, features: Arrays) -> dict[str, pa.Array]:
        counts = outputs["tokens"]
        means = outputs["loss"] / np.maximum(counts, 1)
        columns = {
            "tokens": pa.array(counts.astype(np.int32)),
            "loss": pa.array(means.astype(np.float32), mask=counts == 0),
            "perplexity": pa.array(np.exp(np.minimum(means, 80)).astype(np.float32), mask=counts == 0),
        }
        if self.config.generate:
            spans = zip(outputs["ids"], outputs["from"], outputs["to"], strict=True)
            runs = (ids[start:stop] for ids, start, stop in spans)
            columns["generated"] = pa.array(self.texts(runs, skip_special_tokens=True), pa.string())
        return columns


def _names_of(ids: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    return pa.array([names[label] if 0 <= label < len(names) else None for label in ids.tolist()], pa.string())


def _lists_of(has_NC: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    return pa.array([[names[label] for label in np.flatnonzero(row)] for row in has_NC], pa.list_(pa.string()))
