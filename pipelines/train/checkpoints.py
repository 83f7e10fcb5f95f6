"""What a training remembers: weights, optimizer and step in one checkpoint, and beside it what it was made for.

    MODEL_DIR/run.json                 identity: the dataset's fingerprint, task, model, batch size, seed …
    MODEL_DIR/checkpoints/ckpt-120.*   after 120 steps; the file `checkpoint` names the last finished one
    MODEL_DIR/best/ckpt-80.*           that of the best evaluation, with --keep-best
    MODEL_DIR/model.keras, model.weights.h5   when the training is done, and what `model_files` writes

The step is the reader's position too: with the same identity, batch 120 is the same on every run, so a training goes on
with `start_step=120`. That holds only for the same identity, so another one is refused. The file `checkpoint` is
replaced after a checkpoint's own files are complete: a kill in between leaves the checkpoint before it in force.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from pipelines.train.steps.train_step import ReplicaStep
from tfrecord_io.errors import FingerprintMismatchError, OutputError
from tfrecord_io.format import json_fields

__all__ = ["Checkpoints", "belongs_to", "last_step", "save_model", "usable"]

_IDENTITY = "run.json"
# In errors, where the name alone says too little.
_NAMED = {"data": "fingerprint of the data"}
# What TensorFlow puts around a message.
_WHERE = re.compile(r"\{\{.*?\}\} | \[Op:.*")
_MOST_BYTES = 1 << 20


def belongs_to(model_dir: str, *, identity: Mapping[str, Any]) -> bool:
    """Whether the folder holds this training already; False if it holds none.

    Raises: FingerprintMismatchError if it holds another; OutputError if that cannot be found out.
    """
    folder = model_dir.rstrip("/")
    with usable(folder):
        path = f"{folder}/{_IDENTITY}"
        if not tf.io.gfile.exists(path):
            return False
        with tf.io.gfile.GFile(path) as file:
            if file.size() > _MOST_BYTES:
                raise ValueError(f"{path} is not what a training wrote")
            found = json_fields.mapping(json_fields.load(file.read()))
    # None is what cannot be known yet, such as a global batch before the replicas are counted.
    names = [name for name in {**identity, **found} if name not in identity or identity[name] is not None]
    differing = {name: (found.get(name), identity.get(name)) for name in names if found.get(name) != identity.get(name)}
    if differing:
        listing = ", ".join(
            f"{_NAMED.get(name, name)} {old!r}, now {new!r}" for name, (old, new) in sorted(differing.items())
        )
        raise FingerprintMismatchError(
            f"--model-dir {folder} holds another training: {listing}",
            remedy="give another --model-dir, or the same data and options to go on with that training; data that rows "
            "were appended to is as before at DATA/manifest-0.json, manifest-1.json, …",
        )
    return True


def last_step(model_dir: str) -> int:
    """The step of the checkpoint in force, 0 without one."""
    number = re.search(r"ckpt-(\d+)\Z", tf.train.latest_checkpoint(_saves(model_dir)) or "")
    return int(number.group(1)) if number else 0


class Checkpoints:
    """The checkpoints of one training in a folder, local or gs://."""

    def __init__(self, model_dir: str, replica_step: ReplicaStep, *, identity: Mapping[str, Any], keep: int) -> None:
        self._folder = model_dir.rstrip("/")
        self._identity = dict(identity)
        self._replica_step = replica_step
        # Lists, by position: Keras' names change with what else was built in a process.
        self._state = tf.train.Checkpoint(**replica_step.saved)
        self._manager = tf.train.CheckpointManager(self._state, _saves(model_dir), max_to_keep=keep)
        self._best = tf.train.CheckpointManager(self._state, f"{self._folder}/best", max_to_keep=1)

    def open(self) -> int:
        """Restores the last checkpoint, or claims a new folder. Returns the steps already taken.

        Raises: FingerprintMismatchError if the folder is another training's; OutputError if it cannot be used.
        """
        if not belongs_to(self._folder, identity=self._identity):
            with usable(self._folder):
                tf.io.gfile.makedirs(self._folder)
                path = f"{self._folder}/{_IDENTITY}"
                with tf.io.gfile.GFile(f"{path}.new", "w") as file:
                    file.write(json.dumps(self._identity, indent=2, sort_keys=True) + "\n")
                tf.io.gfile.rename(f"{path}.new", path, overwrite=True)  # a kill leaves no half of it
        if self._manager.latest_checkpoint:
            self._restore(self._manager.latest_checkpoint)
        return self._replica_step.step

    def save(self) -> str:
        """Writes a checkpoint of the present step. Raises: OutputError if it cannot be written."""
        return self._save(self._manager)

    def save_best(self) -> str:
        """Writes a checkpoint of the present step in place of the best one. Raises: OutputError likewise."""
        return self._save(self._best)

    @property
    def best_step(self) -> int | None:
        """The step of the checkpoint that `save_best` wrote last, in this run or before."""
        path = self._best.latest_checkpoint
        return None if path is None else int(path.rpartition("-")[2])

    def restore_best(self) -> None:
        """Puts the best checkpoint's weights in place of the present ones. Raises: OutputError if it is damaged."""
        assert self._best.latest_checkpoint is not None, "one was saved"
        self._restore(self._best.latest_checkpoint)

    def _save(self, manager: tf.train.CheckpointManager) -> str:
        try:
            return str(manager.save(checkpoint_number=self._replica_step.step))
        except tf.errors.OpError as error:
            raise OutputError(
                f"--model-dir {self._folder}: a checkpoint cannot be written ({_first_line(error)})",
                remedy="make room or give the right to write, and run the same command again",
            ) from error

    def _restore(self, path: str) -> None:
        try:
            self._state.restore(path).assert_consumed()
        except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:  # one for each way to be damaged
            raise OutputError(
                f"{path}: it does not fit this model or is damaged ({_first_line(error)})",
                remedy="give another --model-dir, or the version of the model that wrote it",
            ) from error


def save_model(model: Any, model_dir: str) -> tuple[str, str]:
    """Writes the model as .keras and its weights as .weights.h5. Returns both paths.

    Raises: OutputError if they cannot be written.
    """
    targets = tuple(f"{model_dir.rstrip('/')}/{name}" for name in ("model.keras", "model.weights.h5"))
    with tempfile.TemporaryDirectory() as folder:
        # Keras writes local files; so do h5 and zip, which seek. One copy then serves every file system.
        model.save(os.path.join(folder, "model.keras"))
        model.save_weights(os.path.join(folder, "model.weights.h5"))
        try:
            for target in targets:
                tf.io.gfile.copy(os.path.join(folder, os.path.basename(target)), target, overwrite=True)
        except tf.errors.OpError as error:
            raise OutputError(f"{model_dir}: the final model cannot be written ({_first_line(error)})") from error
    return targets[0], targets[1]


@contextlib.contextmanager
def usable(folder: str) -> Iterator[None]:
    """Raises: OutputError if TensorFlow cannot use a folder for a model."""
    try:
        yield
    except (tf.errors.OpError, ValueError) as error:
        raise OutputError(
            f"--model-dir {folder}: it cannot be used ({_first_line(error)})",
            remedy="give a folder that can be written, or an empty one",
        ) from error


def _saves(model_dir: str) -> str:
    return f"{model_dir.rstrip('/')}/checkpoints"


def _first_line(error: BaseException) -> str:
    return _WHERE.sub("", str(error).strip().partition("\n")[0])[:200]
