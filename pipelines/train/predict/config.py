"""What a prediction is asked to do: a frozen dataclass that checks itself, without TensorFlow."""

from __future__ import annotations

import dataclasses

from pipelines.train.config import Backend
from tfrecord_io.errors import ConfigError

__all__ = ["PredictConfig"]

_SUFFIXES = (".parquet", ".jsonl")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """All options of a prediction on a split. Raises: ConfigError if one is wrong or two contradict each other.

    `generate`: tokens to generate after each row, 0 for none. `beams`: 1 for greedy search. `build`: the function
    `package.module:build` that made the model, where its file alone cannot be loaded.
    """

    model_dir: str
    data: str
    output: str
    split: str = "test"
    tpu: str = "auto"
    backend: Backend = "auto"
    zone: str | None = None
    project: str | None = None
    replicas: int | None = None
    batch_size: int = 32
    generate: int = 0
    beams: int = 1
    build: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not self.data or not self.output:
            raise ConfigError(
                f"no {'--output' if self.data else '--data'}, expected a dataset's folder and a file to write",
                remedy="give --data OUT --output FILE.parquet, or a text with --fill-mask",
            )
        if not self.output.endswith(_SUFFIXES):
            raise ConfigError(f"--output {self.output}, expected a name that ends in {' or '.join(_SUFFIXES)}")
        for name, least in (("batch_size", 1), ("generate", 0), ("beams", 1), ("replicas", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name.replace('_', '-')} {value}, expected at least {least}")

    def require_equal_parts(self, replicas: int) -> None:
        """Raises: ConfigError if so many replicas cannot share a batch."""
        if rest := self.batch_size % replicas:
            raise ConfigError(
                f"--batch-size {self.batch_size} on {replicas} replicas, expected a multiple of {replicas}",
                remedy=f"give --batch-size {self.batch_size - rest + replicas}",
            )
