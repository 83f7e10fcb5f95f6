"""Folders of checkpoints, the same for both backends: kept, damaged, and manually deleted files."""

import gc
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipelines.train.checkpoints import Saves
from pipelines.train.on_tensorflow.backend import TensorFlowSaves
from tests.support import processes
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

        def weights(self) -> Any:
            return weight.numpy()

    learner: Any = Learner()
    return TensorFlowSaves(learner, str(folder), keep=keep), learner


def on_jax(folder: Path, *, keep: int) -> tuple[Saves, Any]:
    from pipelines.train.on_jax.backend import OrbaxSaves

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

        def weights(self) -> Any:
            return np.asarray(self.state["w"])

    learner: Any = Learner()
    learner.move(0)
    return OrbaxSaves(learner, str(folder), keep=keep), learner


@pytest.mark.slow
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
        for file in [entry for entry in [path, *path.rglob("*")] if entry.is_file() and entry.suffix != ".index"]:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for path in tmp_path.glob("checkpoint"):  # the list that TensorFlow keeps elsewhere
        path.unlink()

    notes: list[str] = []
    again, learner = opened(tmp_path, keep=2)
    assert again.restore(note=notes.append) == 3 == learner.step == learner.value()
    [note] = notes
    assert "4: the checkpoint does not fit this model or is damaged" in note
    assert note.endswith("trying the previous checkpoint")
    again.save()  # as a training run that goes on
    again.close()
    assert again.steps == [2, 3], "what was given up is gone"
    with pytest.raises(OutputError):
        again.load(4)


# Orbax leaves asynchronous reads of a damaged file unfinished.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("opened", [on_tensorflow, on_jax])
def test_a_flipped_bit_anywhere_never_becomes_a_weight(opened: Any, tmp_path: Path) -> None:
    saves, learner = opened(tmp_path / "whole", keep=2)
    for step in (1, 2):
        learner.move(step)
        saves.save()
    saves.close()
    weights = {step: _weights(opened, tmp_path / "whole", step) for step in (1, 2)}
    files = [file for path in tmp_path.glob("whole/ckpt?2*") for file in (path, *path.rglob("*")) if file.is_file()]
    for path in files:
        content = path.read_bytes()
        for place in sorted({0, len(content) // 3, len(content) // 2, len(content) - 1}):
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            notes: list[str] = []
            again, learner = opened(tmp_path / "whole", keep=2)
            step = again.restore(note=notes.append)
            again.close()
            assert step == (1 if notes else 2), path
            np.testing.assert_array_equal(learner.weights(), weights[step], err_msg=f"{path} {place}")
        path.write_bytes(content)
    gc.collect()  # what Orbax left, under this filter


def _weights(opened: Any, folder: Path, step: int) -> Any:
    saves, learner = opened(folder, keep=2)
    saves.load(step)
    saves.close()
    return learner.weights()


@pytest.mark.parametrize("inside", [(), ("other",), ("default",)])
def test_an_incomplete_folder_is_passed_over(tmp_path: Path, inside: tuple[str, ...]) -> None:
    saves, learner = on_jax(tmp_path, keep=3)
    for step in (1, 2):
        learner.move(step)
        saves.save()
    saves.close()
    (tmp_path / "ckpt_9").joinpath(*inside).mkdir(parents=True)
    notes: list[str] = []
    again, learner = on_jax(tmp_path, keep=3)
    assert again.restore(note=notes.append) == 2 == learner.value()
    [note] = notes
    assert "ckpt_9: the checkpoint does not fit this model or is damaged" in note
    learner.move(3)
    again.save()
    again.close()
    assert again.steps == [1, 2, 3]


@pytest.mark.slow
def test_the_digest_is_the_same_however_the_state_is_divided() -> None:
    program = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
jax.config.update("jax_num_cpu_devices", 4)
from pipelines.train.on_jax.backend import digest
mesh = Mesh(np.array(jax.devices()), ("x",))
draws = np.random.default_rng(0)
state = {"w": draws.normal(size=(8, 12, 3)).astype("float32"), "h": jnp.ones((4, 8), "bfloat16"), "n": jnp.int32(7)}
divided = {
    "w": jax.device_put(state["w"], NamedSharding(mesh, PartitionSpec(None, "x"))),
    "h": jax.device_put(state["h"], NamedSharding(mesh, PartitionSpec("x"))),
    "n": state["n"],
}
assert int(digest(state)) == int(digest(divided)) != int(digest({**state, "n": jnp.int32(8)}))
assert int(digest(state)) != int(digest({**state, "w": state["w"][::-1]}))
"""
    ended = processes.run([sys.executable, "-c", program])
    assert ended.returncode == 0, ended.stderr
