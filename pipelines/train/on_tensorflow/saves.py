"""Checkpoints of `tf.train`: FOLDER/ckpt-120.*. The file `checkpoint` names the last finished one, and is replaced when
a checkpoint's own files are complete: a kill in between leaves the checkpoint before it in force.
"""

from __future__ import annotations

import tensorflow as tf

from pipelines.train.checkpoints import damaged, unwritten
from pipelines.train.on_tensorflow.replica_step import ReplicaStep

__all__ = ["TensorFlowSaves"]


class TensorFlowSaves:
    """The checkpoints of one learner in a folder."""

    def __init__(self, learner: ReplicaStep, folder: str, *, keep: int) -> None:
        self._learner = learner
        self._folder = folder
        # Lists, by position: Keras' names change with what else was built in a process.
        self._state = tf.train.Checkpoint(**learner.saved)
        self._manager = tf.train.CheckpointManager(self._state, folder, max_to_keep=keep)

    @property
    def last_step(self) -> int | None:
        path = self._manager.latest_checkpoint
        return None if path is None else int(path.rpartition("-")[2])

    def save(self) -> None:
        try:
            self._manager.save(checkpoint_number=self._learner.step)
        except tf.errors.OpError as error:
            raise unwritten(self._folder, error) from error

    def restore(self) -> None:
        path = self._manager.latest_checkpoint
        try:
            self._state.restore(path).assert_consumed()
        except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:  # one for each way to be damaged
            raise damaged(path, error) from error

    def close(self) -> None:
        """Do nothing: all writes have finished already."""
