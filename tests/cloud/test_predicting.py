"""Predictions and exports with data, model and output in a bucket, by TensorFlow's own gs:// client."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests import building
from tests.cloud import namespace, proxy
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


def run(gcs: Gcs, folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and stderr of `train-tpu WORDS`."""
    with proxy.running(gcs.endpoint, tls=True) as google:
        # The plan is read by the preparing side's client, which is told here where Google is.
        trusted = {name: str(google.ca_file) for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")}
        told = {"STORAGE_EMULATOR_HOST": "https://storage.googleapis.com", **trusted}
        done = namespace.run(["-m", "pipelines.train.cli", *words], google, folder, seconds=90, **told)
    return done.returncode, done.stderr


def test_a_split_in_a_bucket_is_predicted_into_it(gcs: Gcs, bucket: str, tmp_path: Path) -> None:
    there = f"gs://{bucket}"
    words = ["predict", "--model", f"{there}/model", "--data", f"{there}/out", "--split", "validation", "--tpu", "none"]
    status, said = run(gcs, tmp_path, *words, "--output", f"{there}/predicted/p.parquet")
    assert status == 0, said
    [(name, content)] = gcs.objects(bucket, "predicted/").items()
    assert name.endswith("p.parquet")
    assert [row["row"] for row in pq.read_table(io.BytesIO(content)).to_pylist()] == list(range(80))
    status, said = run(gcs, tmp_path, *words, "--output", f"{there}/predicted/p.parquet")
    assert status == 1
    assert "there already" in said


def test_an_export_is_written_into_a_bucket_once(gcs: Gcs, bucket: str, tmp_path: Path) -> None:
    words = ["export", "--model", f"gs://{bucket}/model", "--format", "keras", "--output", f"gs://{bucket}/export"]
    status, said = run(gcs, tmp_path, *words)
    assert status == 0, said
    files = {name.removeprefix("export/") for name in gcs.objects(bucket, "export/") if not name.endswith("/")}
    assert files >= {"README.md", "model.keras", "tokenizer/tokenizer.json"}
    status, said = run(gcs, tmp_path, *words)
    assert status == 1
    assert "holds something already" in said
