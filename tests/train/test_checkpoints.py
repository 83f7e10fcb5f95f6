"""Folders of checkpoints, the same for both backends: what is kept, what is damaged, and what was deleted by hand."""

import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipelines.train.checkpoints import Saves
from pipelines.train.on_tensorflow.engine import TensorFlowSaves
from tfrecord_io.errors import OutputError


def on_tensorflow(folder: Path, *, keep: int) -> tuple[Saves, Any]:
    weight, taken = tf.Variable(tf.zeros([1000])), tf.Variable(0, dtype=tf.int64)

    class Learner:
        saved = types.MappingProxyType({"weights": [weight], "step": taken})
        step = property(lambda _: int(taken.numpy()))

        def move(self, to: int) -> None:
            taken.assign(to)
            weight.assign(tf.fill([1000], float(to)))

        def value(self) -> float:
            return float(weight[0])

    learner: Any = Learner()
    return TensorFlowSaves(learner, str(folder), keep=keep), learner


def on_jax(folder: Path, *, keep: int) -> tuple[Saves, Any]:
    from pipelines.train.on_jax.engine import OrbaxSaves

    class Learner:
        step = 0
        state: Any

        def move(self, to: int) -> None:
            import jax

            # Values that do not compress to nothing.
            draws = np.random.default_rng(to).normal(size=1000)
            self.step, self.state = to, jax.tree.map(jax.numpy.asarray, {"w": draws, "at": float(to), "step": to})

        def value(self) -> float:
            return float(self.state["at"])

    learner: Any = Learner()
    learner.move(0)
    return OrbaxSaves(learner, str(folder), keep=keep), learner


@pytest.mark.parametrize("opened", [on_tensorflow, on_jax])
def test_the_newest_whole_checkpoint_is_taken_whatever_was_damaged_or_deleted(opened: Any, tmp_path: Path) -> None:
    saves, learner = opened(tmp_path, keep=4)
    assert saves.restore(note=print) == 0
    for step in (1, 2, 3, 4, 5):
        learner.move(step)
        saves.save()
    saves.close()
    assert saves.steps == [2, 3, 4, 5]
    for path in tmp_path.glob("ckpt?5*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in tmp_path.glob("ckpt?4*"):
        for file in [each for each in [path, *path.rglob("*")] if each.is_file() and each.suffix != ".index"]:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for path in tmp_path.glob("checkpoint"):  # the list that TensorFlow keeps elsewhere
        path.unlink()

    notes: list[str] = []
    again, learner = opened(tmp_path, keep=2)
    assert again.restore(note=notes.append) == 3 == learner.step == learner.value()
    [note] = notes
    assert "4: it does not fit this model or is damaged" in note
    assert note.endswith("taking the one before")
    again.save()  # as a training that goes on
    again.close()
    assert again.steps == [2, 3], "what was given up is gone"
    with pytest.raises(OutputError):
        again.load(4)
