"""Optional libraries are imported only on demand. The Hub's make no requests of their own accord, and time out soon
if the Hub does not answer.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.prepare.process import hub_libraries
from tests import building
from tests.support import processes, seams
from tests.support.tokenizers_zoo import Zoo

# Python runs a module of this name first in every process, the workers included.
_SPY = """
import os, sys
def note(event, arguments):
    if event == "socket.getaddrinfo" or event == "socket.connect" and isinstance(arguments[1], tuple):
        os.write(2, f"request: {event} {arguments[-1]!r}\\n".encode())
sys.addaudithook(note)
"""


def online_build(dataset: object, folder: Path, **changes: object) -> building.Outcome:
    """Build in a separate process with the Hub at an unused port. Record its requests."""
    (folder / "sitecustomize.py").write_text(_SPY, encoding="utf-8")
    left_out = ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
    environment = {name: value for name, value in building.environment().items() if name not in left_out}
    path = f"{folder}{os.pathsep}{environment['PYTHONPATH']}"
    words = building.program("build", dataset, *building.options(folder / "out", **changes))
    environment |= {"PYTHONPATH": path, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(folder / "home")}
    ended = processes.run(words, env=environment, cwd=folder)
    return building.Outcome(status=ended.returncode, out=ended.stdout, err=ended.stderr)


@pytest.mark.slow
def test_a_build_of_local_files_makes_no_request(tmp_path: Path) -> None:
    outcome = online_build(building.REVIEWS, tmp_path, workers=2)
    assert outcome.status == 0, outcome.err
    assert "request: " not in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "changes"),
    [("stanfordnlp/imdb", {}), (building.REVIEWS, {"tokenizer": "google-bert/bert-base-uncased"})],
    ids=["dataset", "tokenizer"],
)
def test_a_hub_that_cannot_be_reached_is_asked_once(dataset: object, changes: dict[str, str], tmp_path: Path) -> None:
    outcome = online_build(dataset, tmp_path, **changes)
    requests = [line for line in outcome.err.splitlines() if line.startswith("request: socket.connect")]
    assert requests == ["request: socket.connect ('127.0.0.1', 9)"]
    messages = [line for line in outcome.err.splitlines() if not line.startswith("request: ")]
    assert [line.partition(": ")[0] for line in messages] == ["error", "remedy"], outcome.err
    assert "check the network" in messages[1] or "the network and HF_HUB_OFFLINE" in messages[1]


def test_a_hub_that_takes_the_call_and_says_nothing_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        seams.put(monkeypatch, hub_seconds=0.1)
        assert not hub_libraries.hub_answers()


_PROGRAM = """
import sys
from pipelines.prepare.process import imports
imports.start_worker()
import numpy as np, pyarrow as pa
from tfrecord_io.codec import kernels
pa.array(np.zeros(2)), pa.array(["a"]), pa.table({"a": [1]}).column("a").to_numpy()
assert kernels.lowest_bit(np.uint64(8)) == 3
assert not {"awkward", "pandas", "scipy"} & {*sys.modules}
import awkward, pandas, scipy
assert len(pa.table({"a": [1]}).to_pandas()) == 1
"""


@pytest.mark.slow
def test_arrow_and_numba_import_nothing_optional_unless_somebody_wants_it() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", _PROGRAM], env=building.environment(), check=True)


_THREADS = """
import os, sys
from pipelines.cli import commands
from prep_tfrecords.__main__ import main

def encode():
    import fastokens, numpy
    fastokens.Tokenizer.from_file(sys.argv[1]).encode_batch_flat(["two words"] * 100)
    print(len(os.listdir("/proc/self/task")))

commands.main = encode
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the threads")
def test_the_program_gives_libraries_no_threads_of_their_own(zoo: Zoo) -> None:
    command = [sys.executable, "-c", _THREADS, str(zoo.path("byte_bpe") / "tokenizer.json")]
    assert processes.run(command, check=True).stdout == "1\n"
