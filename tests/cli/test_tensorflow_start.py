"""Output of our commands while TensorFlow starts: none, unless something is wrong.

A small package replaces TensorFlow, which takes ten seconds to import. Like TensorFlow, it bypasses `sys.stderr`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import building
from tests.support import processes

NOTE = "I0000 00:00:1 1 port.cc:153] oneDNN custom operations are on.\n"
GPU_NOTE = "E0000 00:00:1 1 cuda_platform.cc:52] failed call to cuInit\n"
STAND_IN = f"""
import os, sys
os.write(2, {NOTE.encode()!r})
print("WARNING: of the Python side", file=sys.stderr)
class config:
    def list_physical_devices(kind):
        os.write(2, {GPU_NOTE.encode()!r})
        return []
"""
START = """
import os, sys
from pipelines.terminal import tensorflow_start
print("before", file=sys.stderr)
{before}
tensorflow_start.load(verbose={verbose})
print("level", os.environ.get("TF_CPP_MIN_LOG_LEVEL"), file=sys.stderr)
os.write(2, b"after\\n")
"""


def started(
    folder: Path, *, stand_in: str = STAND_IN, before: str = "", verbose: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    (folder / "tensorflow.py").write_text(stand_in)
    environment = {**building.environment(), "TF_CPP_MIN_LOG_LEVEL": "2", **environment}
    environment["PYTHONPATH"] = f"{folder}:{building.REPOSITORY}"
    program = START.format(before=before, verbose=verbose)
    return processes.run([sys.executable, "-c", program], env=environment)


def test_its_notes_are_not_shown_and_ours_are(tmp_path: Path) -> None:
    assert started(tmp_path).stderr == "before\nlevel 2\nafter\n"


def test_what_it_says_later_is_left_to_the_log_level(tmp_path: Path) -> None:
    unset = 'del os.environ["TF_CPP_MIN_LOG_LEVEL"]'
    assert "level 2" in started(tmp_path, before=unset).stderr


@pytest.mark.parametrize(("verbose", "level"), [(True, "2"), (False, "0")])
def test_who_asks_for_its_notes_sees_them(tmp_path: Path, verbose: bool, level: str) -> None:
    assert NOTE in started(tmp_path, verbose=verbose, TF_CPP_MIN_LOG_LEVEL=level).stderr


def test_they_are_shown_where_the_import_fails(tmp_path: Path) -> None:
    ended = started(tmp_path, stand_in=STAND_IN + 'raise ImportError("libwrong.so: undefined symbol")\n')
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"before\n{NOTE}WARNING: of the Python side\nTraceback")
    assert "undefined symbol" in ended.stderr


@pytest.mark.parametrize(("hidden", "shown"), [("", False), ("-1", False), ("0", True)])
def test_they_are_shown_where_a_gpu_cannot_be_used(tmp_path: Path, hidden: str, shown: bool) -> None:
    there = 'import glob; glob.glob = lambda pattern: ["/dev/nvidia0"]'
    ended = started(tmp_path, before=there, CUDA_VISIBLE_DEVICES=hidden)
    assert (GPU_NOTE in ended.stderr) is shown
