"""A dataset runs no code and fetches nothing, unless the user named exactly that in this command."""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare.audit.consent import NONE, source_to_open
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.rows import opening
from tests import building
from tests.building import REVIEWS, Outcome, read_manifest, reviews, shard_bytes
from tfrecord_io.errors import SourceError

pytestmark = pytest.mark.slow

MODULE = "import pyarrow.compute as pc\ndef long(t): return pc.greater(pc.utf8_length(t['text']), 40)\n"
STEPS: dict[str, Any] = {"filter": "keep:long", "label_column": "label", "name": "reviews"}
RECORD = ("--split=train", "--shard=0", "--record=0")


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a step, and the folder with its module."""
    folder = tmp_path_factory.mktemp("stepped")
    (folder / "keep.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        assert building.command("build", REVIEWS, *building.options(folder / "out", **STEPS)).status == 0
    return folder


@pytest.fixture
def folder(stepped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private copy of that folder, which is the current one."""
    shutil.copytree(stepped, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "own"


def place_file(root: Path) -> Path:
    return root / ".prep" / read_manifest(root).fingerprint / "source.json"


def craft(root: Path, **place: Any) -> None:
    """Change the stored description of the source as a dataset's author can: with correct digests."""
    path = place_file(root)
    stored = {**json.loads(path.read_bytes()), **place}
    path.write_text(json.dumps(stored))
    document = json.loads((root / "manifest.json").read_bytes())
    del document["sha256"]
    document["options"]["functions"] = [
        {step["kind"]: step["spec"], "module_sha256": hashlib.sha256(step["source"].encode()).hexdigest()}
        for step in stored.get("functions", [])
    ]
    (root / "manifest.json").write_text(json.dumps(document))


def poisoned(folder: Path) -> Path:
    """Makes the dataset run something else than it was made with. Returns the file that this would leave."""
    ran = folder / "ran"
    text = f"open({str(ran)!r}, 'w').close()\n{MODULE}"
    craft(folder / "out", functions=[{"kind": "filter", "spec": "keep:long", "source": text, "path": "keep.py"}])
    return ran


def trace(root: Path, *arguments: object) -> Outcome:
    return building.command("trace", root, *RECORD, *arguments)


def damaged(root: Path) -> Path:
    shard = root / read_manifest(root).splits["train"].shards[0].name
    shard.unlink()
    return shard


class TestFunctions:
    def test_stored_code_does_not_run_and_the_error_says_which_and_what_to_do(self, folder: Path) -> None:
        ran = poisoned(folder)
        damaged(folder / "out")
        for outcome in (trace(folder / "out"), building.command("verify", folder / "out", "--repair")):
            cause, remedy = outcome.error
            assert cause.endswith("has stored functions that must run on its rows, --filter keep:long; none was run")
            assert "name them again: --filter keep:long" in remedy
            assert "--run-stored-functions" in remedy
            assert outcome.status == 2
        assert not ran.exists()

    def test_the_user_s_own_module_runs_in_its_place_if_it_is_the_same(self, folder: Path) -> None:
        shard = damaged(folder / "out")
        outcome = building.command("verify", folder / "out", "--repair", "--filter", "keep:long")
        assert outcome.status == 0, outcome.err
        assert shard.exists()
        assert trace(folder / "out", "--filter", "keep:long").status == 0

    def test_another_text_under_the_same_name_is_refused_and_neither_runs(self, folder: Path) -> None:
        ran = poisoned(folder)
        own = folder / "mine-ran"
        (folder / "keep.py").write_text(f"open({str(own)!r}, 'w').close()\n{MODULE}")
        cause, _ = trace(folder / "out", "--filter", "keep:long").error
        assert "keep.py differs from the module that the dataset was made with (sha256 " in cause
        assert not ran.exists()
        assert not own.exists()

    def test_other_steps_than_the_dataset_s_are_refused(self, folder: Path) -> None:
        for steps in (("--map", "keep:long"), ("--filter", "keep:long", "--filter", "keep:long")):
            cause, _ = trace(folder / "out", *steps).error
            assert "the functions of this dataset are --filter keep:long, but the command has --" in cause
        cause, _ = trace(reviews(), "--filter", "keep:long").error
        assert cause.endswith("the functions of this dataset are none, but the command has --filter keep:long")

    def test_a_module_in_the_dataset_is_not_the_user_s(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The working directory is the dataset's folder, just after unpacking."""
        (folder / "keep.py").rename(folder / "out" / "keep.py")
        monkeypatch.chdir(folder / "out")
        cause, _ = building.command("trace", ".", *RECORD, "--filter", "keep:long").error
        assert "keep.py is in the dataset's own folder, expected a module of your own" in cause

    def test_the_stored_text_runs_if_the_user_says_so(self, folder: Path) -> None:
        (folder / "keep.py").unlink()
        before = shard_bytes(folder / "out")
        damaged(folder / "out")
        assert building.command("verify", folder / "out", "--repair", "--run-stored-functions").status == 0
        assert shard_bytes(folder / "out") == before
        assert trace(folder / "out", "--run-stored-functions").status == 0

    @pytest.mark.parametrize(
        "change", [{"kind": "exec"}, {"spec": "\x1b[2Jkeep"}, {"source": 5}, {"path": None}, {"more": ""}, {"kind": []}]
    )
    def test_a_step_that_is_none_is_refused(self, folder: Path, change: dict[str, Any]) -> None:
        step = {"kind": "filter", "spec": "keep:long", "source": MODULE, "path": "keep.py", **change}
        path = place_file(folder / "out")
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "functions": [step]}))
        cause, _ = trace(folder / "out", "--run-stored-functions").error
        assert str(path) in cause

    def test_what_needs_no_step_needs_no_word(self, folder: Path) -> None:
        poisoned(folder)
        shutil.rmtree(folder / "out" / "tokenizer")
        assert building.command("verify", folder / "out", "--repair").status == 0
        assert building.command("verify", folder / "out").status == 0
        assert building.command("inspect", folder / "out").status == 0


class TestSource:
    @pytest.fixture(autouse=True)
    def opened(self, finished: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The sources that are opened, once the dataset is made."""
        datasets: list[str] = []

        def spy(config: SourceConfig, **_: Any) -> Any:
            datasets.append(config.dataset)
            raise SourceError("not here", remedy="none")

        monkeypatch.setattr(opening, "open_source", spy)
        return datasets

    @pytest.mark.parametrize(
        "address", ["https://evil.example/x.jsonl", "file:///etc/x.csv", "gs://b/x", "someone/data"]
    )
    def test_a_stored_address_is_opened_only_if_named(self, finished: Path, opened: list[str], address: str) -> None:
        craft(finished, dataset=address)
        damaged(finished)
        for outcome in (trace(finished), building.command("verify", finished, "--repair")):
            cause, remedy = outcome.error
            assert f"the dataset names '{address}' as its source, which is not on this machine" in cause
            assert f"--source {address}" in remedy
        assert opened == []
        assert trace(finished, "--source", address).error[0] == "not here"
        assert opened == [address]

    @pytest.mark.parametrize(
        ("field", "address"),
        [
            *(
                ("data_files", address)
                for address in ("zip://a.csv::http://evil.example/x.zip", "s3://e/x", "hf://datasets/e")
            ),
            *((field, "http://evil.example/x.csv") for field in ("dataset", "more", "data_files", "source_options")),
        ],
    )
    def test_no_stored_entry_is_opened(self, finished: Path, opened: list[str], field: str, address: str) -> None:
        entries = {"data_files": [f"train={address}"], "source_options": [f'catalog={{"uri": "{address}"}}']}
        craft(finished, **{field: {"dataset": address, "more": [address], **entries}[field]})
        damaged(finished)
        for source in ([], ["--source", str(REVIEWS)] if field in entries else []):
            for outcome in (trace(finished, *source), building.command("verify", finished, "--repair", *source)):
                assert "the dataset names" in outcome.error[0]
        assert opened == []

    def test_an_address_below_the_source_that_the_user_names_is_opened(self, finished: Path, opened: list[str]) -> None:
        craft(finished, data_files=["train=zip://*.csv::https://mine.example/d/x.zip"])
        assert "not below" in trace(finished, "--source", "https://mine.example/d/x").error[0]
        assert "not below" in trace(finished, "--source", "/").error[0]
        assert opened == []
        assert trace(finished, "--source", "https://mine.example/d").error[0] == "not here"

    def test_a_local_file_is_opened_as_before(self, finished: Path, opened: list[str]) -> None:
        assert trace(finished).error[0] == "not here"
        assert opened == [str(REVIEWS)]

    @pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/sys/kernel", "/dev/zero", "/proc/*/maps"])
    def test_a_path_to_other_things_than_data_is_named(self, finished: Path, opened: list[str], path: str) -> None:
        craft(finished, dataset=path)
        assert "something other than plain files and folders" in trace(finished).error[0]
        assert opened == []


def test_pipes_among_the_data_and_links_to_devices_are_to_be_named(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "x.jsonl").write_text("{}")
    (plain / "gone.jsonl").symlink_to("nowhere")
    assert source_to_open(str(plain), NONE, root="r") == str(plain)
    assert source_to_open(f"{plain}/*.jsonl", NONE, root="r") == f"{plain}/*.jsonl"
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped" / "x.jsonl")
    for path in (tmp_path / "zero.csv", tmp_path / "piped", f"{tmp_path}/*.csv"):
        with pytest.raises(SourceError, match="something other than plain files"):
            source_to_open(str(path), NONE, root="r")
