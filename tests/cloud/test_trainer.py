"""The trainer in a bucket: a training run that goes on where one ended, `predict`, `export`.

TensorFlow's own gs:// client reads and writes, see tests.cloud.namespace.
"""

import dataclasses
import io
from pathlib import Path

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.train import models
from tests import building
from tests.building import Outcome
from tests.cloud import namespace, proxy
from tests.cloud.emulator import Gcs
from tests.support import seams
from tests.train import backend_runs, training

pytestmark = pytest.mark.slow

STEPS = 15
SAVE_EVERY = 5
STOP_AT = 10
OPTIONS = {"save_every": SAVE_EVERY, "keep_checkpoints": 2, "schedule": "constant"}


@dataclasses.dataclass
class Ran:
    """Output of commands, their objects in the bucket by name, and a folder for the same run on this machine."""

    outcomes: dict[str, Outcome]
    objects: dict[str, bytes]
    local: Path

    def copy(self, name: str, folder: Path) -> Path:
        path = folder / Path(name).name
        path.write_bytes(self.objects[name])
        return path


@pytest.fixture(scope="module")
def ran(gcs: Gcs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder, bucket = tmp_path_factory.mktemp("trained"), gcs.bucket()
    there = f"gs://{bucket}"
    for name, content in building.files(training.data()).items():
        gcs.write(bucket, f"out/{name}", content)
    begun, ended = (
        training.options(f"{there}/model", data=f"{there}/out", steps=steps, **OPTIONS) for steps in (STOP_AT, STEPS)
    )
    predict = ["predict", "--model", f"{there}/model", "--data", f"{there}/out", "--split", "validation"]
    predict += ["--tpu", "none", "--output", f"{there}/predicted/p.parquet"]
    export = ["export", "--model", f"{there}/model", "--format", "keras", "--output", f"{there}/export"]
    commands = {"begun": begun, "ended": ended, "predict": predict, "predict again": predict}
    commands |= {"export": export, "export again": export}
    with proxy.running(gcs.endpoint, tls=True) as google:
        # The preparing side's client reads the plan, with the address set here.
        trusted = {name: str(google.ca_file) for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")}
        told = {"STORAGE_EMULATOR_HOST": "https://storage.googleapis.com", **trusted}
        words = backend_runs.program("tensorflow", list(commands.values()))
        done = namespace.run(words, google, folder, **told)
    assert done.returncode == 0, done.stderr
    outcomes = dict(zip(commands, backend_runs.outcomes(done.stdout), strict=True))
    return Ran(outcomes=outcomes, objects=gcs.objects(bucket), local=folder)


@pytest.fixture(scope="module")
def whole(ran: Ran) -> str:
    """Report of the same training run without interruption, on the local disk, from the same weights."""
    with pytest.MonkeyPatch.context() as patched:
        seams.put(patched, build_model=backend_runs.with_known_weights(models.build))
        return training.done(ran.local / "model", steps=STEPS, **OPTIONS).out


def test_it_goes_on_behind_its_last_checkpoint_with_the_same_losses(ran: Ran, whole: str) -> None:
    assert (ran.outcomes["begun"].status, ran.outcomes["ended"].status) == (0, 0), ran.outcomes["ended"].err
    begun, ended, expected = map(training.losses, (ran.outcomes["begun"].out, ran.outcomes["ended"].out, whole))
    assert (min(begun), min(ended)) == (1, STOP_AT + 1)
    assert {**begun, **ended} == expected, "to the last bit"


def test_the_model_in_the_bucket_is_the_one_that_was_trained_here(ran: Ran, whole: str, tmp_path: Path) -> None:
    assert training.metrics(ran.outcomes["ended"].out) == training.metrics(whole)
    here = keras.models.load_model(ran.local / "model" / "model.keras").get_weights()
    model = keras.models.load_model(ran.copy("model/model.keras", tmp_path))
    there = model.get_weights()
    model.set_weights([np.zeros_like(weights) for weights in there])
    model.load_weights(ran.copy("model/model.weights.h5", tmp_path))
    for mine, theirs, weights in zip(here, there, model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(mine, weights)


def test_old_checkpoints_are_deleted(ran: Ran) -> None:
    indexes = sorted(name for name in ran.objects if name.endswith(".index"))
    assert indexes == [f"model/checkpoints/ckpt-{step}.index" for step in (10, 15)]


def test_scalars_for_tensorboard_are_there(ran: Ran) -> None:
    [*_, events] = [content for name, content in sorted(ran.objects.items()) if name.startswith("model/logs/")]
    assert all(tag in events for tag in (b"train/loss", b"train/steps_per_s", b"validation/accuracy"))


def test_a_split_in_a_bucket_is_predicted_into_it(ran: Ran) -> None:
    first, again = ran.outcomes["predict"], ran.outcomes["predict again"]
    assert first.status == 0, first.err
    [content] = [content for name, content in ran.objects.items() if name.startswith("predicted/")]
    assert [row["row"] for row in pq.read_table(io.BytesIO(content)).to_pylist()] == list(range(80))
    assert again.status == 1
    assert "exists already" in again.err


def test_an_export_is_written_into_a_bucket_once(ran: Ran) -> None:
    first, again = ran.outcomes["export"], ran.outcomes["export again"]
    assert first.status == 0, first.err
    files = {name.removeprefix("export/") for name in ran.objects if name.startswith("export/")}
    assert files >= {"README.md", "model.keras", "tokenizer/tokenizer.json"}
    assert again.status == 1
    assert "the folder is not empty" in again.err
