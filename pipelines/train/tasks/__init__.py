"""Tasks: output sizes, losses and metrics. Inputs and labels come from `tfrecord_io.objectives`.

docs/reference/training.md has the table of losses and metrics. Steps return weighted sums. The mean is taken once, over
the global batch or evaluation, so that fill rows and replicas do not bias it.
"""

from pipelines.train.tasks.kinds import BoundTask
from pipelines.train.tasks.table import TASKS, bind, decoder_start

__all__ = ["TASKS", "BoundTask", "bind", "decoder_start"]
