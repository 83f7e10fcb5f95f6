"""Everything on a page can be pasted: commands run or name their needs, and their options exist.

One test runs every command without special needs, in the order of the site, in one copy of the examples, like a reader
who follows the pages from first to last.
"""

import ast
import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import BashComplete

from pipelines.cli import commands as prep_tfrecords
from pipelines.train import cli as train_tpu
from tests.support import in_process, pages, processes
from tests.support.pages import Block, Command
from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.longest

SHELL = pages.blocks("bash", "sh")
PYTHON = pages.blocks("python")
PROGRAMS: dict[str, click.Command] = {"prep-tfrecords": prep_tfrecords.main, "train-tpu": train_tpu.main}
# What readers have besides our own programs.
COMMON = {"cp", "mkdir", "rm", "cmp", "printf"}
# Options of Beam, of its runners and of our scripts, which pages name too.
words_of = str.split
FOREIGN_OPTIONS = {
    *words_of("""
    --runner --project --region --temp_location --flink_master --parallelism --job_endpoint --environment_type
    --environment_config --setup_file --extra_package --requirements_file --sdk_container_image --sdk_location
    --experiments --number_of_worker_harness_threads --no_use_public_ips --number_of_execution_retries --check --fast
    --lowest --upgrade --strict --outdir --wheel --no-deps --repo-type --help --direct_running_mode --runs --only
    --engine --strings --seed --minutes --any-version --maxtext --float64 --devices --long-bytes
    --beam_pipeline_options --xla_gpu_deterministic_ops --append-eod --data-cache-path --quick --reset-position-ids
    --reset-attention-mask
    """)
}


def shown(page_blocks: list[Block]) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in page_blocks]


@pytest.mark.parametrize("block", shown(SHELL))
def test_a_block_can_be_pasted_and_says_what_it_needs_and_no_more(block: Block) -> None:
    assert block.marked == block.needed, "the first line is `# Needs …`, with the words of tests.support.pages"
    assert "…" not in block.text
    assert not block.text.startswith("$")


def lines_of(program: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each command line of a program: in blocks, and those in the text that have nothing left out."""
    for block in SHELL:
        yield from ((block.place, command[1:]) for command in block.commands if command[0] == program)
    for page in pages.pages():
        text = (REPOSITORY / page).read_text(encoding="utf-8")
        for quoted in re.findall(rf"`{program} ([^`…]+)`", text):
            yield page, pages.command_of(quoted.split())


LINES = [(program, place, words) for program in PROGRAMS for place, words in lines_of(program)]


@pytest.mark.parametrize(("program", "place", "words"), LINES, ids=[f"{place} {words[0]}" for _, place, words in LINES])
def test_every_option_of_a_line_exists_and_takes_its_value(program: str, place: str, words: tuple[str, ...]) -> None:
    in_a_block = place in {block.place for block in SHELL}
    if words and not {"--help", "--version"} & set(words):
        parse(program, list(words), whole=in_a_block)


def parse(program: str, words: list[str], *, whole: bool) -> None:
    """Parse a command line without running it; of one that is not `whole`, required arguments may be missing."""
    command = PROGRAMS[program]
    if isinstance(command, click.Group) and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    try:
        command.make_context(program, words)
    except click.UsageError as error:
        if whole or not any(isinstance(cause, click.MissingParameter) for cause in (error, error.__context__)):
            raise


def options_of(command: click.Command) -> set[str]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*map(options_of, inner))


@pytest.mark.parametrize("page", pages.pages())
def test_every_option_that_a_page_names_exists(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    named = {
        name for quoted in re.findall(r"`[^`\n]+`", text) for name in re.findall(r"(?<![\w-])--[a-z][\w-]+", quoted)
    }
    assert named <= options_of(PROGRAMS["prep-tfrecords"]) | options_of(PROGRAMS["train-tpu"]) | FOREIGN_OPTIONS


@pytest.mark.parametrize("program", PROGRAMS)
def test_completion_is_switched_on_as_the_pages_say(program: str) -> None:
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    lines = [line for block in SHELL for line in block.text.splitlines() if line.startswith("eval ")]
    assert f'eval "$({variable}=bash_source {program})"' in lines
    completion = BashComplete(PROGRAMS[program], {}, program, variable)
    arguments = ["build"] if program == "prep-tfrecords" else []
    assert "--verbose" in {item.value for item in completion.get_completions(arguments, "--ver")}


def test_the_examples_below_help_can_be_pasted() -> None:
    epilogs = [PROGRAMS["train-tpu"].epilog, prep_tfrecords.main.commands["build"].epilog]
    texts = [epilog.partition("Examples:\n")[2] for epilog in epilogs if epilog is not None]
    assert len(texts) == 2
    for text in texts:
        block = Block(page="--help", line=1, language="bash", text=text)
        assert len(block.commands) == 2
        for command in block.commands:
            parse(command[0], list(command[1:]), whole=True)


OURS = ("pipelines", "prep_tfrecords", "tfrecord_io")


@pytest.mark.parametrize("block", shown(PYTHON))
def test_what_python_imports_from_here_is_there(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in OURS:
            exec(ast.unparse(node), {})


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a reader: the examples, and nothing made yet."""
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    (tmp_path / "docs").mkdir()
    shutil.copy(REPOSITORY / "docs" / "manifest.schema.json", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_every_command_that_needs_nothing_special_runs(copy: Path) -> None:
    later: list[tuple[str, str, list[str] | str]] = []
    failures, done = [], set()
    for block in SHELL:
        for command in [] if block.marked else block.commands:
            if command in done:
                continue
            done.add(command)
            if command[0] == "train-tpu":
                later.append((block.place, "train", list(command[1:])))
            elif why := failure_of(command):
                failures.append((block.place, why))
    assert failures == []
    runnable = (block for block in PYTHON if not block.text.startswith("#") and can_import(block))
    steps = json.dumps([*later, *((block.place, "python", block.text) for block in runnable)])
    variables = {**processes.environment(), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    ended = processes.run([sys.executable, "-m", "tests.support.page_runner", steps], cwd=copy, env=variables)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == []


def failure_of(command: Command) -> str:
    name = command[0]
    if name in ("prep-tfrecords", "python"):
        outcome = in_process.run(command)
        return (outcome.err or str(outcome)) if outcome.status else ""
    assert name in COMMON, f"{name}: a block of commands uses our programs and {sorted(COMMON)}"
    line = shlex.join(command).replace(" '>' ", " > ")  # what printf says may go to a file
    ended = processes.run(["bash", "-c", line])
    return ended.stderr or str(ended) if ended.returncode else ""


def can_import(block: Block) -> bool:
    names = {
        str(name).partition(".")[0]
        for node in ast.walk(ast.parse(block.text))
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in getattr(node, "names", [])]
        )
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return all(importlib.util.find_spec(name) for name in names)
