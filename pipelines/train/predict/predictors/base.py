"""What a predictor is: one function that runs on the devices, and one that makes columns of what it gave.

batch of B rows ─► outputs (on each replica, static shapes) ─► columns (NumPy to Arrow, fill rows gone) ─► joined
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.train.model_files import TrainedModel
from pipelines.train.predict.config import PredictConfig
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.tokens import TokenFeatures

__all__ = ["Call", "Predictor"]

# Features of B rows to logits, without dropout.
Call = Callable[[Mapping[str, Any]], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictor(abc.ABC):
    """Predicts for rows of one dataset. `manifest` is that of the data, `trained` knows that of the training.

    `load_tokenizer`: loads it where it is needed, since that takes a second.
    """

    config: PredictConfig
    trained: TrainedModel
    manifest: Manifest
    load_tokenizer: Callable[[], Any]

    @property
    def tokens(self) -> TokenFeatures:
        """The names of the features of tokens."""
        return TokenFeatures.of(self.manifest)

    def device_features(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Of the features of B rows, those that `outputs` gets."""
        return {name: features[name] for name in self.tokens.inputs}

    @abc.abstractmethod
    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        """In `keras.ops`, for the B rows of one replica: tensors [B, ...]. `features`: see above."""

    @abc.abstractmethod
    def columns(self, outputs: Mapping[str, np.ndarray], features: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
        """Columns of N values from N rows of outputs, and all features of these rows."""

    def joined(self, table: pa.Table) -> pa.Table:
        """The whole table, in source order, before it is written: where several records of a row become one answer."""
        return table
