"""`export --push` against a Hub in this process: the upload, `load_dataset` of the result, and refusals.

The Hub's client reads its settings on import, so the commands run in a process of their own.
"""

import base64
import json
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
REFUSALS = {401: "hf auth login", 403: "hf auth login", 500: "run the same"}
_PROGRAM = """
import dataclasses, json, os, sys
from tests.building import command
root, output, count = sys.argv[1:]
ended = []
for _ in range(int(count)):
    outcome = command("export", root, "--to", "parquet", "--output", output, "--push", "me/reviews")
    ended.append({**dataclasses.asdict(outcome), "is_made": os.path.exists(output)})
import datasets
print(json.dumps([ended, datasets.load_dataset("me/reviews", split="train")["label"][:]]))
"""


class Receiver(Hub):
    """A hub that refuses uploads with REFUSALS, each once, and then takes every file within its commit."""

    def __init__(self) -> None:
        super().__init__({})
        self.address, self.refusals = "", list(REFUSALS)
        self.created: list[Any] = []

    def answer(self, method: str, path: str, query: str, body: bytes = b"") -> tuple[int, bytes, dict[str, str]]:
        if method != "POST":
            return super().answer(method, path, query)
        status = self.refusals.pop(0) if self.refusals else 200
        reply = {"error": f"Bearer {TOKEN} may not"} if status != 200 else self._answer(path, body)
        return status, json.dumps(reply).encode(), {}

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


Pushed = tuple[Receiver, Path, Any]


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushed]:
    """The Hub, the export, and how each of the same commands ended with the labels that `datasets` reads."""
    folder, receiver = tmp_path_factory.mktemp("pushed"), Receiver()
    environment = {name: value for name, value in building.environment().items() if not name.startswith("HF_")}
    with serving(receiver.answer) as web:
        receiver.address = web.address
        environment |= {"HF_HOME": str(folder / "home"), "HF_ENDPOINT": web.address, "HF_TOKEN": TOKEN}
        words = [sys.executable, "-c", _PROGRAM, str(reviews()), str(folder / "out"), str(len(REFUSALS) + 1)]
        done = processes.run(words, env=environment)
        assert done.returncode == 0, done.stderr
        yield receiver, folder / "out", json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_hub_gets_the_export_with_its_card_and_datasets_reads_it(pushed: Pushed) -> None:
    hub, output, ((*_, last), labels) = pushed
    assert last["status"] == 0, last["err"]
    assert "uploaded to the dataset me/reviews on the Hub" in last["err"]
    assert hub.repositories["me/reviews"].files == building.files(output)
    assert hub.created == [{"name": "reviews", "organization": "me", "type": "dataset", "visibility": "private"}]
    assert labels == read_rows(reviews(), "train")["label"].tolist()


@pytest.mark.slow
def test_a_refusal_comes_before_the_export_and_shows_no_token(pushed: Pushed) -> None:
    for refused, remedy in zip(pushed[2][0][:-1], REFUSALS.values(), strict=True):
        assert (refused["status"], refused["is_made"]) == (1, False)
        assert "me/reviews: the Hub did not accept the dataset" in refused["err"]
        assert remedy in refused["err"]
        assert TOKEN not in refused["out"] + refused["err"]
