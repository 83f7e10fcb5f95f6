"""Hub datasets, against a Hub that lives in this process: the revision is resolved once and pinned, nothing of the
dataset is run, and each way of failing has its own message.

The Hub's client reads its settings when it is imported, so that the requests are made by a fresh process.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.prepare.sources.resolve.fake_hub import SHA, Hub, Repository
from tests.prepare.sources.web import Web, serving
from tests.support import processes

pytestmark = pytest.mark.slow

OTHER_SHA = "b" * 40
TOKEN = "hf_SecretSecretSecretSecret"
TWO = """---
configs:
- config_name: en
  data_files: en/*.jsonl
- config_name: de
  default: true
  data_files:
  - split: test
    path: de/b.jsonl
  - split: train
    path: [de/c.jsonl, de/a.jsonl]
dataset_info:
- config_name: de
  features:
  - name: text
    dtype: string
---
"""
LAYOUTS: dict[str, list[str]] = {
    "plain": ["b.jsonl", "a.jsonl"],
    "sharded": ["data/train-00001-of-00002.jsonl", "data/train-00000-of-00002.jsonl", "data/x-00000-of-00001.jsonl"],
    "folders": ["data/train/0.jsonl", "data/test/0.jsonl", "data/test/1.jsonl"],
    "names": ["train.jsonl", "dev.jsonl", "eval.jsonl", ".gitattributes", ".git/train.jsonl"],
    "beside": ["a.jsonl", "LICENSE", "notes.md"],
}


def _named(names: Sequence[str]) -> dict[str, bytes]:
    return {name: json.dumps({"text": name}).encode() + b"\n" for name in names}


CARD = {**_named(["en/0.jsonl", "en/1.jsonl", "de/a.jsonl", "de/b.jsonl", "de/c.jsonl"]), "README.md": TWO.encode()}
REPOSITORIES = {
    "me/good": Repository(_named(["data/train.jsonl"])),
    "me/card": Repository(CARD),
    "me/private": Repository(_named(["a.jsonl"]), private=True),
    "me/open-to-members": Repository(_named(["a.jsonl"]), gated="auto"),
    "me/script": Repository({"script.py": b"raise SystemExit('code of a dataset must not run')\n"}),
    "me/gated": Repository({}, status=403, refusals=10**9, code="GatedRepo"),
    "me/broken": Repository({}, status=500, refusals=10**9),
    "me/busy": Repository({}, status=429, refusals=10**9),
    "me/waking": Repository(_named(["a.jsonl"]), status=503, refusals=2),
    "me/empty": Repository({"README.md": b"# Nothing\n"}),
    "me/lured": Repository(
        {"README.md": TWO.replace("en/*", "hf://datasets/me/good/*").encode(), **_named(["a.jsonl"])}
    ),
    "me/pickled": Repository({"a.pkl": b"no"}),
    **{f"me/{name}": Repository(_named(names)) for name, names in LAYOUTS.items()},
}

_CLIENT = """
import json, sys
from pipelines.prepare.storage import storage_errors
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.resolve.resolve import resolve

storage_errors._PATIENCE_SECONDS, storage_errors._FIRST_SECONDS = 1.0, 0.1
answers = []
for request in json.loads(sys.argv[1]):
    try:
        dataset, *options = request.split()
        listing = resolve(SourceConfig(dataset=dataset, **dict(option.split("=") for option in options)))
        splits = {name: [[file.path, file.name, file.size, file.version] for file in files] for name, files in
                  listing.splits.items()}
        features = repr(listing.features_of("train"))
        answers.append({"identity": dict(listing.identity), "splits": splits, "features": features,
                        "needs_token": listing.needs_token})
    except Exception as error:
        answers.append({"error": type(error).__name__, "message": str(error)})
assert "apache_beam" not in sys.modules
print(json.dumps(answers))
"""
_THEIRS = """
import json, sys, datasets, huggingface_hub
loaded = [datasets.load_dataset(*name.split(" config=")) for name in json.loads(sys.argv[1])]
huggingface_hub.snapshot_download("me/good", repo_type="dataset")
huggingface_hub.hf_hub_download("me/plain", "a.jsonl", repo_type="dataset")
print(json.dumps([{split: rows["text"][:] for split, rows in one.items()} for one in loaded]))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def hub() -> Iterator[Web]:
    with serving(Hub(REPOSITORIES).answer) as web:
        yield web


@pytest.fixture(scope="module")
def endpoint(hub: Web) -> str:
    return hub.address


def _run(program: str, home: Path, endpoint: str, *arguments: Any, offline: bool = False) -> Any:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_TOKEN": TOKEN,
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-c", program, json.dumps(arguments)]
    done = processes.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


Answers = dict[str, dict[str, Any]]


def _ask(home: Path, endpoint: str, *requests: str, offline: bool = False) -> Answers:
    return dict(zip(requests, _run(_CLIENT, home, endpoint, *requests, offline=offline), strict=True))


@pytest.fixture(scope="module")
def online(home: Path, endpoint: str) -> Answers:
    """Answers to all requests that a working connection allows, made by one process."""
    return _ask(
        *(home, endpoint, "me/good", "me/good revision=main", f"me/good revision={SHA}", "me/good revision=nope"),
        *("me/missing", "me/gated", "me/broken", "me/busy", "a/b/c", "me/script", "me/waking", "me/private"),
        *("me/open-to-members", "me/empty", "me/lured", "me/pickled", *(f"me/{name}" for name in LAYOUTS)),
        *("me/card", "me/card config=en", "me/card config=fr", "me/good config=en", "hf://datasets/me"),
        *("hf://datasets/me/card/en/*.jsonl", "hf://datasets/me/card@main/de/a.jsonl"),
        *("hf://datasets/me/folders/data", "hf://datasets/me/card", "hf://datasets/me/card/none"),
    )


def _names(answer: dict[str, Any]) -> dict[str, list[str]]:
    return {split: [name for _, name, *_ in files] for split, files in answer["splits"].items()}


@pytest.mark.parametrize("request_", ["me/good", "me/good revision=main", f"me/good revision={SHA}"])
def test_every_name_of_a_revision_is_pinned_to_its_commit(online: Answers, request_: str) -> None:
    answer = online[request_]
    assert answer["identity"] == {"kind": "hub", "name": "me/good", "config": None, "revision": SHA}
    size = len(REPOSITORIES["me/good"].files["data/train.jsonl"])
    path = f"hf://datasets/me/good@{SHA}/data/train.jsonl"
    assert answer["splits"] == {"train": [[path, "data/train.jsonl", size, ""]]}


LOADED = [*(f"me/{name}" for name in LAYOUTS), "me/card", "me/card config=en"]


@pytest.fixture(scope="module")
def loaded(home: Path, endpoint: str) -> Any:
    """The texts that `load_dataset` reads; whole datasets and a file of another one are in the cache afterwards."""
    return _run(_THEIRS, home, endpoint, *LOADED)


def test_a_dataset_has_the_splits_and_rows_of_load_dataset(online: Answers, loaded: Any) -> None:
    assert [_names(online[request]) for request in LOADED] == loaded


def test_the_card_says_columns_and_configuration(online: Answers) -> None:
    assert online["me/card"]["features"] == "{'text': Value('string')}"
    assert online["me/card config=en"]["features"] == "None"
    assert [online[name]["identity"]["config"] for name in ("me/card", "me/card config=en")] == [None, "en"]


def test_an_address_of_the_hub_is_pinned_too(online: Answers) -> None:
    answer = online["hf://datasets/me/card/en/*.jsonl"]
    assert _names(answer) == {"train": ["0.jsonl", "1.jsonl"]}
    assert [path for path, *_ in answer["splits"]["train"]] == [
        f"hf://datasets/me/card@{SHA}/en/{name}.jsonl" for name in (0, 1)
    ]
    assert len({entry["mark"] for entry in answer["identity"]["files"]}) == 2
    assert _names(online["hf://datasets/me/card@main/de/a.jsonl"]) == {"train": ["a.jsonl"]}
    assert _names(online["hf://datasets/me/folders/data"]) == {"train": ["0.jsonl"], "test": ["0.jsonl", "1.jsonl"]}
    assert online["hf://datasets/me/card"] == online["me/card"]


def test_only_those_that_not_everybody_may_read_need_a_token(online: Answers) -> None:
    needs = [online[f"me/{name}"]["needs_token"] for name in ("good", "card", "private", "open-to-members")]
    assert needs == [False, False, True, True]


def test_only_the_pinned_commit_is_read(online: Answers, hub: Web) -> None:
    assert online
    read = [line for line in hub.requests if "/tree/" in line]
    assert read
    assert all(SHA in line for line in read)


def test_the_token_is_in_no_answer(online: Answers) -> None:
    assert TOKEN not in json.dumps(online)


def test_a_hub_that_is_overloaded_is_waited_for(online: Answers) -> None:
    assert _names(online["me/waking"]) == {"train": ["a.jsonl"]}


@pytest.mark.parametrize(
    ("request_", "message", "remedy"),
    [
        ("me/good revision=nope", "me/good: no such revision", "--revision"),
        ("me/missing", "me/missing: no such dataset", "for a private dataset set HF_TOKEN"),
        ("me/gated", "me/gated: this dataset is gated", "ask for access on its page"),
        (
            "me/broken",
            "me/broken: the Hub answered with an error (Server error '500",
            "run the same command again later",
        ),
        ("me/busy", "me/busy: the Hub answered with an error (", "run the same command again later"),
        ("me/script", "me/script: Dataset scripts are no longer supported", "--revision refs/convert/parquet"),
        ("me/empty", "me/empty: no file has a name that `datasets` knows", "--format"),
        ("me/lured", "me/lured, README.md: its data path 'hf://datasets/me/good/*.jsonl'", "if you trust that path"),
        ("me/pickled", "me/pickled: no file has a name that `datasets` knows", "--format"),
        ("me/card config=fr", "me/card: `datasets` cannot open it (BuilderConfig 'fr' not found", "--config"),
        ("me/good config=en", "me/good: `datasets` cannot open it (BuilderConfig 'en' not found", "--config"),
        ("a/b/c", "a/b/c: no such file or folder", "a Hub dataset has the form USER/NAME"),
        ("hf://datasets/me/card/none", f"hf://datasets/me/card@{SHA}/none: no such file or folder", "check the path"),
        ("hf://datasets/me", "hf://datasets/me: not a dataset on the Hub", "hf://datasets/USER/NAME"),
    ],
)
def test_each_failure_has_its_message_and_remedy(online: Answers, request_: str, message: str, remedy: str) -> None:
    answer = online[request_]
    assert answer.get("error") == "SourceError"
    assert answer["message"].startswith(message)
    assert remedy in answer["message"]


@pytest.fixture(scope="module")
def offline(home: Path, loaded: Any) -> Answers:
    assert loaded
    revisions = [f"me/good revision={revision}" for revision in (SHA, OTHER_SHA, "v2")]
    return _ask(home, "http://127.0.0.1:9", "me/good", *revisions, "me/other", "me/plain", offline=True)


def test_offline_the_cached_commit_is_used_and_named(online: Answers, offline: Answers) -> None:
    for request in ("me/good", f"me/good revision={SHA}"):
        assert offline[request]["identity"] == online["me/good"]["identity"]
        assert _names(offline[request]) == _names(online["me/good"])
        assert Path(offline[request]["splits"]["train"][0][0]).is_absolute()


@pytest.mark.parametrize("revision", [OTHER_SHA, "v2"])
def test_offline_another_revision_is_never_passed_off_as_the_one_asked_for(offline: Answers, revision: str) -> None:
    message = offline[f"me/good revision={revision}"]["message"]
    assert f"me/good --revision {revision}: no such local file or folder, and while HF_HUB_OFFLINE is set" in message
    assert f"hf download me/good --repo-type dataset --revision {revision}" in message
    for name in ("me/other", "me/plain"):  # a part of a dataset is not all of it
        assert "a dataset must be in the Hub's cache with all of its files" in offline[name]["message"]


def test_a_hub_that_does_not_answer_is_told_apart_from_a_missing_dataset(home: Path) -> None:
    answer = _ask(home, "http://127.0.0.1:9", "me/good")["me/good"]
    assert answer["error"] == "SourceError"
    assert "the Hub cannot be reached" in answer["message"]
    assert "check the network" in answer["message"]
