"""Messages of `import prep_tfrecords` and `python -m prep_tfrecords` if a package is shadowed or missing."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pipelines.cli import commands
from pipelines.train import cli as train_tpu
from tests import building
from tests.support import processes


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{folder}:{processes.REPOSITORY}"
    return processes.run([sys.executable, *arguments], cwd=folder, env={**processes.environment(), "PYTHONPATH": path})


@pytest.mark.parametrize("name", ["pipelines/__init__.py", "pipelines.py"])
def test_a_folder_that_shadows_ours_is_named(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.touch()
    ended = run("-c", "import prep_tfrecords", folder=tmp_path)
    assert ended.returncode == 1
    assert "ImportError: `import pipelines` finds " + str(tmp_path / "pipelines") in ended.stderr
    assert "rename" in ended.stderr


def test_nothing_large_is_imported_before_it_is_used(tmp_path: Path) -> None:
    program = "import prep_tfrecords, sys; print(*{'numpy', 'click', 'pyarrow', 'datasets'} & {*sys.modules})"
    assert run("-c", program, folder=tmp_path).stdout == "\n"


def test_a_missing_package_is_named_in_two_lines(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('none', name='click')")
    ended = run("-m", "prep_tfrecords", "--help", folder=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "error: prep-tfrecords needs the package click, which is not installed",
        "remedy: run `pip install prep-tfrecords`, without --no-deps",
    ]


def test_an_interrupt_while_libraries_are_imported_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    ended = run("-m", "prep_tfrecords", "--help", folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "")


@pytest.mark.parametrize("command", [*commands.main.commands.values(), *train_tpu.main.commands.values()])
def test_the_list_of_commands_shows_whole_sentences(command: click.Command) -> None:
    assert command.short_help
    assert len(command.short_help) <= 60
    assert command.short_help.endswith(".")


def test_flags_about_messages_may_stand_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    reviews = str(building.reviews())
    with pytest.raises(SystemExit) as ended:
        commands.main.main(["--json", "-q", "inspect", reviews, "--rows", "0"])
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out) == []
