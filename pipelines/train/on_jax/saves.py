"""Checkpoints by Orbax: FOLDER/ckpt_120/, written while the training goes on, and named so when it is complete. Another
number of devices goes on with it.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import orbax.checkpoint as ocp

from pipelines.train.checkpoints import damaged, unwritten
from pipelines.train.on_jax.global_step import GlobalStep

__all__ = ["OrbaxSaves"]


class OrbaxSaves:
    """The checkpoints of one learner in a folder."""

    def __init__(self, learner: GlobalStep, folder: str, *, keep: int) -> None:
        self._learner = learner
        self._folder = folder if "://" in folder else os.path.abspath(folder)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, step_prefix="ckpt", create=True)
        try:
            self._manager: Any = ocp.CheckpointManager(self._folder, options=options)
        except (OSError, ValueError) as error:
            raise unwritten(folder, error) from error

    @property
    def last_step(self) -> int | None:
        return self._manager.latest_step()

    def save(self) -> None:
        self._wait()
        if self._learner.step == self.last_step:  # of a best evaluation that came again
            self._manager.delete(self._learner.step)
        self._writing(lambda: self._manager.save(self._learner.step, args=ocp.args.StandardSave(self._learner.state)))

    def restore(self) -> None:
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, self._learner.state)
        try:
            state = self._manager.restore(self.last_step, args=ocp.args.StandardRestore(like))
        except Exception as error:  # of Orbax, TensorStore and the file system, one for each way to be damaged
            raise damaged(f"{self._folder}/ckpt_{self.last_step}", error) from error
        self._learner.state, self._learner.step = state, int(state["step"])

    def close(self) -> None:
        self._wait()

    def _wait(self) -> None:
        self._writing(self._manager.wait_until_finished)

    def _writing(self, work: Any) -> None:
        try:
            work()
        except (OSError, ValueError, RuntimeError) as error:
            raise unwritten(self._folder, error) from error
