"""`export --push` against a hub in this process: uploads, `load_dataset` of the result, and refusals.

The hub's client reads its settings on import, so each command is a process.
"""

import base64
import hashlib
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
from tests.prepare.sources.web import Web, serving
from tests.support import limits

TOKEN = "hf_SecretSecretSecretSecret"
_READ = "import datasets, sys; print(datasets.load_dataset(sys.argv[1], split='train')['label'][:])"


class Receiver(Hub):
    """A hub that takes uploads: texts in the commit, other files by LFS. `refusal`: a status for each upload."""

    def __init__(self) -> None:
        super().__init__({})
        self.address, self.refusal = "", 0
        self.created: list[Any] = []
        self.stored: dict[str, bytes] = {}

    def answer(self, method: str, path: str, query: str, body: bytes = b"") -> tuple[int, bytes, dict[str, str]]:
        if method not in ("POST", "PUT"):
            return super().answer(method, path, query)
        if self.refusal:
            return self.refusal, json.dumps({"error": f"Bearer {TOKEN} may not"}).encode(), {}
        if method == "PUT":
            self.stored[hashlib.sha256(body).hexdigest()] = body
            return 200, b"", {}
        answer = self._commit(path, body) if "/commit/" in path else self._answer(path, json.loads(body))
        return 200, json.dumps(answer).encode(), {}

    def _answer(self, path: str, sent: dict[str, Any]) -> dict[str, Any]:
        if path == "/api/repos/create":
            self.created.append(sent)
            self.repositories = {f"{sent['organization']}/{sent['name']}": Repository({})}
            return {"url": f"{self.address}/datasets/{sent['organization']}/{sent['name']}"}
        if "/preupload/" in path:
            names = [file["path"] for file in sent["files"]]
            modes = {name: "lfs" if name.endswith(".parquet") else "regular" for name in names}
            return {"files": [{"path": name, "uploadMode": modes[name], "shouldIgnore": False} for name in names]}
        if "objects" not in sent:  # the card, to be validated
            return {"errors": [], "warnings": []}
        upload = {"upload": {"href": f"{self.address}/lfs"}}
        return {"transfer": "basic", "objects": [{**each, "actions": upload} for each in sent["objects"]]}

    def _commit(self, path: str, body: bytes) -> dict[str, Any]:
        lines = [json.loads(line) for line in body.splitlines()]
        files = {}
        for kind, value in ((line["key"], line["value"]) for line in lines):
            if kind in ("file", "lfsFile"):
                is_text = kind == "file"
                files[value["path"]] = base64.b64decode(value["content"]) if is_text else self.stored[value["oid"]]
        name = "/".join(path.split("/")[3:5])
        self.repositories = {name: Repository(files)}
        return {"commitUrl": f"{self.address}/datasets/{name}/commit/1", "commitOid": "1"}


@pytest.fixture
def hub() -> Iterator[tuple[Receiver, Web]]:
    receiver = Receiver()
    with serving(receiver.answer) as web:
        receiver.address = web.address
        yield receiver, web


def run(web: Web, home: Path, *arguments: object, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "HF_HOME": str(home),
        "HF_ENDPOINT": web.address,
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    environment |= {"HF_TOKEN": token} if token else {}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=limits.PROCESS)


def push(
    web: Web, folder: Path, name: str = "me/reviews", token: str | None = TOKEN
) -> subprocess.CompletedProcess[str]:
    words = ("-m", "prep_tfrecords", "export", reviews(), "--to", "parquet", "--output", folder / "out")
    return run(web, folder / "home", *words, "--push", name, token=token)


def test_the_hub_gets_the_export_with_its_card_and_datasets_reads_it(tmp_path: Path, hub: tuple[Receiver, Web]) -> None:
    receiver, web = hub
    done = push(web, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "uploaded to the hub's dataset me/reviews" in done.stderr
    assert receiver.repositories["me/reviews"].files == building.files(tmp_path / "out")
    (created,) = receiver.created
    assert created == {"name": "reviews", "organization": "me", "type": "dataset", "visibility": "private"}
    read = run(web, tmp_path / "home", "-c", _READ, "me/reviews")
    assert json.loads(read.stdout) == read_rows(reviews(), "train")["label"].tolist(), read.stderr


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "hf auth login"), (403, "hf auth login"), (500, "run the same command again")]
)
def test_a_refusal_comes_before_the_export_and_names_no_token(
    tmp_path: Path, hub: tuple[Receiver, Web], status: int, remedy: str
) -> None:
    receiver, web = hub
    receiver.refusal = status
    done = push(web, tmp_path)
    assert done.returncode == 1
    assert "me/reviews: the hub did not take the dataset" in done.stderr
    assert remedy in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--push", "reviews"], "--push reviews: expected ORG/NAME"),
        (["--push", "me/a..b"], "--push me/a..b: "),
        (["--push", "me/x", "--output", "memory://out"], "uploads are from local folders"),
    ],
)
def test_a_wrong_name_or_place_is_refused_before_anything_is_sent(
    tmp_path: Path, arguments: list[str], cause: str
) -> None:
    outcome = building.command("export", reviews(), "--to", "parquet", "--output", tmp_path / "out", *arguments)
    assert cause in outcome.error[0]
    assert not (tmp_path / "out").exists()
