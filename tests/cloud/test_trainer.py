"""The trainer in a bucket: a training that is killed and goes on, `predict`, `export`.

TensorFlow's own gs:// client reads and writes, see tests.cloud.namespace.
"""

import dataclasses
import io
import json
from pathlib import Path

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest

from tests import building
from tests.building import Outcome
from tests.cloud import namespace, proxy, resuming
from tests.cloud.emulator import Gcs
from tests.train import backend_runs, training
from tests.train.finished import finished

pytestmark = pytest.mark.slow

STEPS = 15
SAVE_EVERY = 5
KILL_AT = 8


@dataclasses.dataclass
class Trained:
    """What both runs reported, what they left in the bucket by name, and the same training on this machine."""

    killed: str
    resumed: str
    objects: dict[str, bytes]
    local: Path

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
    return Trained(**json.loads(done.stdout), objects=gcs.objects(bucket, "model/"), local=folder)


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
    here = keras.models.load_model(trained.local / "model" / "model.keras").get_weights()
    model = keras.models.load_model(trained.copy("model.keras", tmp_path))
    there = model.get_weights()
    model.set_weights([np.zeros_like(each) for each in there])
    model.load_weights(trained.copy("model.weights.h5", tmp_path))
    for mine, theirs, weights in zip(here, there, model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(mine, weights)


def test_old_checkpoints_are_deleted(trained: Trained) -> None:
    indexes = sorted(name for name in trained.objects if name.endswith(".index"))
    assert indexes == [f"checkpoints/ckpt-{step}.index" for step in (10, 15)]


def test_scalars_for_tensorboard_are_there(trained: Trained) -> None:
    [*_, events] = [content for name, content in sorted(trained.objects.items()) if name.startswith("logs/")]
    assert all(tag in events for tag in (b"train/loss", b"train/steps_per_s", b"validation/accuracy"))


@pytest.fixture(scope="module")
def bucket(gcs: Gcs) -> str:
    """A bucket with a dataset and a model."""
    name = gcs.bucket()
    for folder, files in (("out", training.data()), ("model", finished("classify", "tests.train.small:bag"))):
        for path, content in building.files(files).items():
            gcs.write(name, f"{folder}/{path}", content)
    return name


@pytest.fixture(scope="module")
def ended(gcs: Gcs, bucket: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """What came of `predict` and of `export`, each run twice into the same place."""
    there = f"gs://{bucket}"
    commands = {
        "predict": [
            *("predict", "--model", f"{there}/model", "--data", f"{there}/out", "--split", "validation"),
            *("--tpu", "none", "--output", f"{there}/predicted/p.parquet"),
        ],
        "export": ["export", "--model", f"{there}/model", "--format", "keras", "--output", f"{there}/export"],
    }
    words = [words for words in commands.values() for _ in range(2)]
    with proxy.running(gcs.endpoint, tls=True) as google:
        # The plan is read by the preparing side's client, which is told here where Google is.
        trusted = {name: str(google.ca_file) for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")}
        told = {"STORAGE_EMULATOR_HOST": "https://storage.googleapis.com", **trusted}
        done = namespace.run(
            backend_runs.program("tensorflow", words), google, tmp_path_factory.mktemp("ended"), seconds=240, **told
        )
    assert done.returncode == 0, done.stderr
    found = backend_runs.outcomes(done.stdout)
    return {name: found[2 * at : 2 * at + 2] for at, name in enumerate(commands)}


def test_a_split_in_a_bucket_is_predicted_into_it(gcs: Gcs, bucket: str, ended: dict[str, list[Outcome]]) -> None:
    first, again = ended["predict"]
    assert first.status == 0, first.err
    [(name, content)] = gcs.objects(bucket, "predicted/").items()
    assert name.endswith("p.parquet")
    assert [row["row"] for row in pq.read_table(io.BytesIO(content)).to_pylist()] == list(range(80))
    assert again.status == 1
    assert "there already" in again.err


def test_an_export_is_written_into_a_bucket_once(gcs: Gcs, bucket: str, ended: dict[str, list[Outcome]]) -> None:
    first, again = ended["export"]
    assert first.status == 0, first.err
    files = {name.removeprefix("export/") for name in gcs.objects(bucket, "export/") if not name.endswith("/")}
    assert files >= {"README.md", "model.keras", "tokenizer/tokenizer.json"}
    assert again.status == 1
    assert "holds something already" in again.err
