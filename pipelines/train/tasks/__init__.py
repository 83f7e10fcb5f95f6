"""Tasks: output sizes, losses and metrics of the model. The inputs and labels come from objectives.

docs/reference/training.md has the table of losses and metrics. All values are weighted sums. The mean is taken once,
over the whole global batch or evaluation, so that neither replicas with fewer weights nor fill rows bias it.
"""

from pipelines.train.tasks.binding import bind
from pipelines.train.tasks.kinds import BoundTask
from pipelines.train.tasks.table import TASKS, decoder_start

__all__ = ["TASKS", "BoundTask", "bind", "decoder_start"]
