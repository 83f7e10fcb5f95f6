"""A training whose data and model folder are in a bucket: killed, gone on with, and finished there.

TensorFlow's own gs:// client reads and writes, see tests.cloud.namespace.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest

from tests import building
from tests.cloud import namespace, proxy, resuming
from tests.cloud.emulator import Gcs
from tests.train import training

pytestmark = pytest.mark.slow

STEPS = 15
SAVE_EVERY = 5
KILL_AT = 8


class Trained:
    """What both runs reported, what they left in the bucket by name, and the same training on this machine."""

    def __init__(self, report: dict[str, str], objects: dict[str, bytes], counts: Counter[str], local: Path) -> None:
        self.killed, self.resumed = report["killed"], report["resumed"]
        self.objects = objects
        self.counts = counts
        self.local = local

    def copy(self, name: str, folder: Path) -> Path:
        """An object as a file."""
        (folder / name).write_bytes(self.objects[name])
        return folder / name


@pytest.fixture(scope="module")
def trained(gcs: Gcs, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, bucket = tmp_path_factory.mktemp("trained"), gcs.bucket()
    for name, content in building.files(training.data()).items():
        gcs.write(bucket, f"out/{name}", content)
    there = training.options(
        f"gs://{bucket}/model", data=f"gs://{bucket}/out", steps=STEPS, save_every=SAVE_EVERY, keep_checkpoints=2
    )
    with proxy.running(gcs.endpoint, tls=True) as google:
        done = namespace.run(["-m", resuming.__name__, str(KILL_AT), *there], google, folder, seconds=240)
        assert done.returncode == 0, done.stderr
        counts = google.counts()
    return Trained(json.loads(done.stdout), gcs.objects(bucket, "model/"), counts, folder)


@pytest.fixture(scope="module")
def whole(trained: Trained) -> str:
    """What the same training reports that is not interrupted, on this machine's disk."""
    outcome = training.command(trained.local / "model", steps=STEPS)
    assert outcome.status == 0, outcome.err
    return outcome.out


def test_it_goes_on_behind_its_last_checkpoint_with_the_same_losses(trained: Trained, whole: str) -> None:
    losses, expected = training.losses(trained.resumed), training.losses(whole)
    first = min(losses)
    assert first in (6, 11), "behind the last checkpoint that was finished before the kill"
    assert losses == {step: expected[step] for step in range(first, STEPS + 1)}, "to the last bit"


def test_the_bucket_gives_the_losses_of_a_local_copy(trained: Trained, whole: str) -> None:
    losses, expected = training.losses(trained.killed), training.losses(whole)
    assert losses == {step: expected[step] for step in range(1, max(losses) + 1)}


def test_the_model_in_the_bucket_is_the_one_that_was_trained_here(trained: Trained, whole: str, tmp_path: Path) -> None:
    assert training.metrics(trained.resumed) == training.metrics(whole)
    here = keras.models.load_model(trained.local / "model" / "model.keras")
    there = keras.models.load_model(trained.copy("model.keras", tmp_path))
    for mine, theirs in zip(here.get_weights(), there.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_its_weights_are_there_too(trained: Trained, whole: str, tmp_path: Path) -> None:
    model = keras.models.load_model(trained.local / "model" / "model.keras")
    expected = model.get_weights()
    model.set_weights([np.zeros_like(each) for each in expected])
    model.load_weights(trained.copy("model.weights.h5", tmp_path))
    for mine, theirs in zip(expected, model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_old_checkpoints_are_deleted(trained: Trained) -> None:
    indexes = sorted(name for name in trained.objects if name.endswith(".index"))
    assert indexes == [f"checkpoints/ckpt-{step}.index" for step in (10, 15)]


def test_scalars_for_tensorboard_are_there(trained: Trained) -> None:
    [*_, events] = [content for name, content in sorted(trained.objects.items()) if name.startswith("logs/")]
    assert all(tag in events for tag in (b"train/loss", b"train/steps_per_s", b"validation/accuracy"))
