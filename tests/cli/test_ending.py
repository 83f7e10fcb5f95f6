"""Programs end by a signal wherever it arrives, and leave no temporary files."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from pipelines.terminal.ending import TerminatedError, terminable
from tests.support import limits, processes

PROGRAM = """
import os, signal, subprocess, sys, tempfile
import click
from pipelines.terminal import console
from tfrecord_io.errors import PrepError

@click.group(cls=console.Program)
def main(): pass

@main.command()
@click.argument("end")
@console.common()
def run(end):
    tempfile.mkdtemp()
    subprocess.run([sys.executable, "-c", "import os, tempfile; tempfile.mkdtemp(); os.kill(os.getpid(), 9)"])
    if end == "error":
        raise RuntimeError("out of luck")
    if end == "memory":
        try:
            bytearray(10**18)
        except MemoryError as error:
            raise PrepError("cannot be read", remedy="run it again") from error
    if end == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
main()
"""


@pytest.mark.parametrize(("end", "status"), [("return", 0), ("error", 1), ("memory", 1), ("signal", 143)])
def test_no_temporary_files_stay_and_too_little_memory_has_its_remedy(tmp_path: Path, end: str, status: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "run", end], env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True
    )
    assert ended.returncode == status, ended.stderr
    assert (b"remedy: give the process more memory" in ended.stderr) == (end == "memory")
    assert list(tmp_path.iterdir()) == []


class Finalized:
    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __del__(self) -> None:
        self._function()


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, TerminatedError), (signal.SIGINT, KeyboardInterrupt)])
@pytest.mark.parametrize("place", ["callback", "finalizer"])
def test_a_signal_outlasts_a_callback(place: str, number: signal.Signals, error: type[BaseException]) -> None:
    ends: list[str] = []

    def interrupted() -> None:
        os.kill(os.getpid(), number)
        ends.append(place)

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    compiler = llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine()
    )
    compiler.set_object_cache(notify_func=lambda *_: interrupted())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(error), terminable():
            _then_wait(compiler.finalize_object if place == "callback" else lambda: Finalized(interrupted))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ends == [place]


@pytest.mark.parametrize("group", ["Program", "TwoLineErrors"], ids=["prep-tfrecords", "train-tpu"])
def test_a_user_without_home_folder_has_a_temporary_one(tmp_path: Path, group: str) -> None:
    """Like a container with `--user 12345`, where Python raises "Could not determine home directory"."""
    unknown = "import pwd\ndef getpwuid(uid): raise KeyError(uid)\npwd.getpwuid = getpwuid\n"
    home = "print(pathlib.Path.home().is_dir(), pathlib.Path.home())\n"
    program = PROGRAM.replace("    tempfile.mkdtemp()\n", f"    import pathlib\n    {home}", 1)
    program = program.replace("console.Program", f"console.{group}")
    environment = {name: value for name, value in os.environ.items() if name != "HOME"} | {"TMPDIR": str(tmp_path)}
    ended = processes.run([sys.executable, "-c", unknown + program, "run", "return"], env=environment)
    assert ended.stdout.startswith(f"True {tmp_path}/prep-tfrecords-"), ended.stderr
    assert [*tmp_path.iterdir()] == []


def _then_wait(function: Callable[[], object]) -> None:
    function()
    time.sleep(limits.TEST)


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminable():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
