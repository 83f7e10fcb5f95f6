"""Options of a prediction: a frozen dataclass that validates itself, without TensorFlow."""

from __future__ import annotations

import dataclasses

from pipelines.train import option_fields
from pipelines.train.config import Backend
from pipelines.train.option_fields import option
from tfrecord_io.errors import ConfigError

__all__ = ["GROUPS", "PredictConfig"]

_SUFFIXES = (".parquet", ".jsonl")


# Titles of groups of options in --help, by the first field of each.
GROUPS = {"model_dir": "What to predict", "tpu": "Where and how"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """All options of a prediction on a split. Raises: ConfigError if one is wrong or two contradict each other."""

    model_dir: str = option("The --model-dir of a training.", name="model", metavar="MODEL_DIR")
    data: str = option("Folder that prep-tfrecords built, local or gs://.", "", metavar="OUT")
    split: str = option("Split to predict.", "test")
    output: str = option("FILE.parquet or FILE.jsonl, local or gs://.", "", metavar="FILE")
    overwrite: bool = option("Replace FILE if it is there.", False)
    generate: int = option("For clm: tokens to generate after each row.", 0, least=0)
    beams: int = option("For seq2seq and --generate: 1 for greedy, more for beam search.", 1, least=1)
    build: str | None = option(
        "The function that made the model, if it is yours and its file alone cannot be loaded.",
        None,
        metavar="PACKAGE.MODULE:FUNCTION",
    )
    tpu: str = option("auto, local, none, a TPU's name, or grpc://IP:8470.", "auto", metavar="WHERE")
    backend: Backend = option("What drives the devices, as in a training.", "auto")
    zone: str | None = option("Of the TPU, with its name.", None)
    project: str | None = option("Of the TPU, with its name.", None)
    replicas: int | None = option("GPUs to use, or parts to split the CPU into.", None, least=1)
    batch_size: int = option("Rows at a time, on all replicas together.", 32, least=1)

    def __post_init__(self) -> None:
        option_fields.check(self)
        if not self.data or not self.output:
            raise ConfigError(
                f"no {'--output' if self.data else '--data'}, expected a dataset's folder and a file to write",
                remedy="give --data OUT --output FILE.parquet, or a text with --fill-mask",
            )
        if not self.output.endswith(_SUFFIXES):
            raise ConfigError(f"--output {self.output}, expected a name that ends in {' or '.join(_SUFFIXES)}")

    def require_equal_parts(self, replicas: int) -> None:
        """Raises: ConfigError if so many replicas cannot share a batch."""
        if rest := self.batch_size % replicas:
            raise ConfigError(
                f"--batch-size {self.batch_size} on {replicas} replicas, expected a multiple of {replicas}",
                remedy=f"give --batch-size {self.batch_size - rest + replicas}",
            )
