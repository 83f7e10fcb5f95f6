"""Options of a prediction: a frozen dataclass that validates itself, without TensorFlow."""

from __future__ import annotations

import dataclasses
import functools

from pipelines.terminal.option_fields import check, option
from pipelines.train.config import Backend
from tfrecord_io.errors import ConfigError

__all__ = ["GROUPS", "PredictConfig"]

_SUFFIXES = (".parquet", ".jsonl")

# Titles in --help.
GROUPS = ("What to predict", "Where and how")
_what, _where = (functools.partial(option, group=title) for title in GROUPS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """All options of a prediction on a split. Raises: ConfigError if one is wrong or two contradict each other."""

    model_dir: str = _what("The --model-dir of a training.", flags="--model", metavar="MODEL_DIR")
    data: str = _what("Folder that prep-tfrecords built, local or gs://.", "", metavar="OUT")
    split: str = _what("Split to predict.", "test")
    output: str = _what("FILE.parquet or FILE.jsonl, local or gs://.", "", metavar="FILE")
    overwrite: bool = _what("Replace FILE if it is there.", False)
    generate: int = _what("For clm: tokens to generate after each row.", 0, least=0)
    beams: int = _what("For seq2seq and --generate: 1 for greedy, more for beam search.", 1, least=1)
    build: str | None = _what(
        "The function that made the model, if it is yours and its file alone cannot be loaded.",
        None,
        metavar="PACKAGE.MODULE:FUNCTION",
    )
    tpu: str = _where("auto, local, none, a TPU's name, or grpc://IP:8470.", "auto", metavar="WHERE")
    backend: Backend = _where("What drives the devices, as in a training.", "auto")
    zone: str | None = _where("Of the TPU, with its name.", None)
    project: str | None = _where("Of the TPU, with its name.", None)
    replicas: int | None = _where("GPUs to use, or parts to split the CPU into.", None, least=1)
    batch_size: int = _where("Rows at a time, on all replicas together.", 32, least=1)

    def __post_init__(self) -> None:
        check(self)
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
