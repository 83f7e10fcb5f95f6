"""Predictions and exports with data, model and output in a bucket, by TensorFlow's own gs:// client."""

from __future__ import annotations

import io
import json

import pyarrow.parquet as pq
import pytest

from tests import building
from tests.cloud import namespace, proxy, training_commands
from tests.cloud.emulator import Gcs
from tests.train import training
from tests.train.finished import finished

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket(gcs: Gcs) -> str:
    """A bucket with a dataset and a model."""
    name = gcs.bucket()
    for folder, files in (("out", training.data()), ("model", finished("classify", "tests.train.small:bag"))):
        for path, content in building.files(files).items():
            gcs.write(name, f"{folder}/{path}", content)
    return name


@pytest.fixture(scope="module")
def ended(gcs: Gcs, bucket: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    """Exit status and stderr of `predict` and of `export`, each run twice into the same place."""
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
        program = ["-m", training_commands.__name__, json.dumps(words)]
        done = namespace.run(program, google, tmp_path_factory.mktemp("ended"), seconds=240, **told)
    assert done.returncode == 0, done.stderr
    found = [(status, said) for status, said in json.loads(done.stdout.splitlines()[-1])]
    return {name: found[2 * at : 2 * at + 2] for at, name in enumerate(commands)}


def test_a_split_in_a_bucket_is_predicted_into_it(
    gcs: Gcs, bucket: str, ended: dict[str, list[tuple[int, str]]]
) -> None:
    (status, said), (again, refusal) = ended["predict"]
    assert status == 0, said
    [(name, content)] = gcs.objects(bucket, "predicted/").items()
    assert name.endswith("p.parquet")
    assert [row["row"] for row in pq.read_table(io.BytesIO(content)).to_pylist()] == list(range(80))
    assert again == 1
    assert "there already" in refusal


def test_an_export_is_written_into_a_bucket_once(
    gcs: Gcs, bucket: str, ended: dict[str, list[tuple[int, str]]]
) -> None:
    (status, said), (again, refusal) = ended["export"]
    assert status == 0, said
    files = {name.removeprefix("export/") for name in gcs.objects(bucket, "export/") if not name.endswith("/")}
    assert files >= {"README.md", "model.keras", "tokenizer/tokenizer.json"}
    assert again == 1
    assert "holds something already" in refusal
