"""A source that another process opens is the one that this process would open, its errors and warnings included; and
that process is never missed, nor left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare import early_source, loading
from pipelines.prepare.config import SourceConfig
from pipelines.prepare.loading import open_source
from tests import building
from tfrecord_io.errors import SourceError, SplitNotFoundError

pytestmark = pytest.mark.slow

ROWS = [{"text": f"row {number}", "label": number % 2} for number in range(50)]


Begin = Callable[[SourceConfig], "subprocess.Popen[bytes]"]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begins as in a new process, where `datasets` is not imported yet."""

    def begun(config: SourceConfig) -> subprocess.Popen[bytes]:
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "datasets")
            early_source.begin(config)
        return early_source._begun[-1].process

    return begun


@pytest.fixture
def config(tmp_path: Path) -> SourceConfig:
    return SourceConfig(dataset=str(building.source(tmp_path / "rows", train=ROWS, test=ROWS[:5])))


def test_the_source_is_the_one_that_would_be_opened_here(begin: Begin, config: SourceConfig) -> None:
    process = begin(config)
    assert early_source.awaited(config) == open_source(config)
    assert process.returncode == 0


def test_what_lies_in_the_current_folder_is_not_taken_for_a_library(
    begin: Begin, config: SourceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "datasets.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    process = begin(config)
    early_source.awaited(config)
    assert process.returncode == 0


def test_an_error_is_the_one_that_would_be_raised_here(begin: Begin, config: SourceConfig) -> None:
    wrong = SourceConfig(dataset=config.dataset, splits=("validation",))
    with pytest.raises(SplitNotFoundError) as here:
        open_source(wrong)
    begin(wrong)
    with pytest.raises(SplitNotFoundError) as there:
        early_source.awaited(wrong)
    assert (there.value.cause, there.value.remedy) == (here.value.cause, here.value.remedy)


def test_what_is_logged_there_is_said_here(begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "test.jsonl").write_text("")
    config = SourceConfig(dataset=str(tmp_path))
    begin(config)
    assert list(early_source.awaited(config).splits) == ["train"]
    assert [message for message in caplog.messages if "split 'test' has no rows and is left out" in message]


def test_a_process_that_dies_costs_nothing_but_time(begin: Begin, config: SourceConfig) -> None:
    begin(config).kill()
    assert early_source.awaited(config) == open_source(config)


def test_what_nobody_foresaw_is_raised_here_and_not_printed_there_too(
    begin: Begin, config: SourceConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = SourceConfig(dataset=config.dataset)
    object.__setattr__(wrong, "limit", "many")
    begin(wrong)
    with pytest.raises(TypeError):
        early_source.awaited(wrong)
    assert "Traceback" not in capfd.readouterr().err


def test_another_source_than_the_one_begun_is_opened_here(begin: Begin, config: SourceConfig) -> None:
    process = begin(config)
    other = SourceConfig(dataset=config.dataset, splits=("test",))
    assert list(early_source.awaited(other).splits) == ["test"]
    assert process.returncode is not None


def test_nothing_is_begun_where_datasets_is_imported_already(config: SourceConfig) -> None:
    assert "datasets" in sys.modules
    early_source.begin(config)
    assert not early_source._begun


# The tests' own process has threads; the one that opens sources has none that hold locks.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
class TestManyLargeFiles:
    """Files that are large enough for several processes, as far as this module's setting says."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(loading, "_BYTES_PER_PROCESS", 1)
        for number in range(5):
            rows = [{"text": f"row {number * 7 + row}"} for row in range(7)]
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"part-{number}.parquet")
        return tmp_path

    def test_rows_are_in_the_order_of_the_files(self, folder: Path) -> None:
        (split,) = open_source(SourceConfig(dataset=str(folder)), processes=3).splits.values()
        assert len(split.files.paths) == 3, "each process wrote a file"  # type: ignore[union-attr]
        texts = [text for _, batch in split.read(split.ranges, ["text"]) for text in batch.column(0).to_pylist()]
        assert texts == [f"row {number}" for number in range(35)]

    def test_the_process_of_its_own_does_the_same(
        self, begin: Begin, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # As on a machine with three cores, and with files that are large.
        program = early_source._PROGRAM.replace(
            "early_source.main()",
            "loading; loading._BYTES_PER_PROCESS = 1; import os; os.sched_getaffinity = lambda _: {0, 1, 2}; "
            "early_source.main()",
        ).replace("import early_source", "import early_source, loading")
        monkeypatch.setattr(early_source, "_PROGRAM", program)
        config = SourceConfig(dataset=str(folder))
        process = begin(config)
        killer = threading.Timer(60, process.kill)  # rather a failure than a test that never ends
        killer.start()
        (split,) = early_source.awaited(config).splits.values()
        killer.cancel()
        assert process.returncode == 0
        assert len(split.files.paths) == 3, "each process wrote a file"  # type: ignore[union-attr]

    def test_what_is_wrong_with_one_is_said_as_by_one_process(self, folder: Path) -> None:
        pq.write_table(pa.table({"body": ["a"]}), folder / "part-3.parquet")
        said = []
        for processes in (1, 3):
            with pytest.raises(SourceError, match="its files have not the same columns") as error:
                open_source(SourceConfig(dataset=str(folder)), processes=processes)
            said.append(str(error.value))
        assert said[0] == said[1]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_ends_with_its_launcher_however_that_ends(tmp_path: Path, how: signal.Signals) -> None:
    # A pipe without a writer: opening this source never ends by itself.
    os.mkfifo(tmp_path / "train.jsonl")
    program = (
        "import sys, time\n"
        "from pipelines.prepare import early_source\n"
        "from pipelines.prepare.config import SourceConfig\n"
        "early_source.begin(SourceConfig(dataset=sys.argv[1]))\n"
        "print(early_source._begun[0].process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "train.jsonl")],
        env=building.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    process = int(launcher.stdout.readline())
    os.kill(process, 0)
    launcher.send_signal(how)
    launcher.wait()
    launcher.stdout.close()
    deadline = time.monotonic() + 60
    while _is_running(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(process)


def _is_running(process: int) -> bool:
    """Not gone, and no zombie that nobody has waited for."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
