"""`export --push` against a Hub in this process: the upload, `load_dataset` of the result, and refusals.

The Hub's client reads its settings on import, so each command is a process.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import building
from tests.building import read_rows, reviews
from tests.prepare.sources.resolve.fake_hub import Hub, Repository
from tests.prepare.sources.web import serving
from tests.support import processes

TOKEN = "hf_SecretSecretSecretSecret"
_READ = "import datasets; print(datasets.load_dataset('me/reviews', split='train')['label'][:])"


class Receiver(Hub):
    """A hub that takes every file within its commit. `refusal`: the status of all answers to uploads."""

    def __init__(self) -> None:
        super().__init__({})
        self.address, self.refusal = "", 200
        self.created: list[Any] = []

    def answer(self, method: str, path: str, query: str, body: bytes = b"") -> tuple[int, bytes, dict[str, str]]:
        if method != "POST":
            return super().answer(method, path, query)
        said = {"error": f"Bearer {TOKEN} may not"} if self.refusal != 200 else self._answer(path, body)
        return self.refusal, json.dumps(said).encode(), {}

    def _answer(self, path: str, body: bytes) -> dict[str, Any]:
        lines = [json.loads(line) for line in body.splitlines()]
        if path == "/api/repos/create":
            self.created += lines
            self.repositories = {"me/reviews": Repository({})}
        elif "/preupload/" in path:
            names = [file["path"] for file in lines[0]["files"]]
            return {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        elif "/commit/" in path:
            files = [line["value"] for line in lines if line["key"] == "file"]
            content = {file["path"]: base64.b64decode(file["content"]) for file in files}
            self.repositories = {"me/reviews": Repository(content)}
        address = f"{self.address}/datasets/me/reviews"
        return {"url": address, "commitUrl": f"{address}/commit/1", "commitOid": "1", "errors": [], "warnings": []}


@pytest.fixture
def hub() -> Iterator[Receiver]:
    receiver = Receiver()
    with serving(receiver.answer) as web:
        receiver.address = web.address
        yield receiver


def run(hub: Receiver, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(folder / "home"), "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
    command = [sys.executable, *map(str, arguments)]
    return processes.run(command, env=environment)


def push(hub: Receiver, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ("-m", "prep_tfrecords", "export", reviews(), "--to", "parquet", "--output", folder / "out")
    return run(hub, folder, *words, "--push", "me/reviews")


def test_the_hub_gets_the_export_with_its_card_and_datasets_reads_it(tmp_path: Path, hub: Receiver) -> None:
    done = push(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "uploaded to the dataset me/reviews on the Hub" in done.stderr
    assert hub.repositories["me/reviews"].files == building.files(tmp_path / "out")
    assert hub.created == [{"name": "reviews", "organization": "me", "type": "dataset", "visibility": "private"}]
    read = run(hub, tmp_path, "-c", _READ)
    assert json.loads(read.stdout) == read_rows(reviews(), "train")["label"].tolist(), read.stderr


@pytest.mark.parametrize(("status", "remedy"), [(401, "hf auth login"), (403, "hf auth login"), (500, "run the same")])
def test_a_refusal_comes_before_the_export_and_shows_no_token(
    tmp_path: Path, hub: Receiver, status: int, remedy: str
) -> None:
    hub.refusal = status
    done = push(hub, tmp_path)
    assert done.returncode == 1
    assert "me/reviews: the Hub did not accept the dataset" in done.stderr
    assert remedy in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()
