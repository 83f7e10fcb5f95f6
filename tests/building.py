"""Builds for tests: through the command line, in this process, on the reviews or on a few rows written here.

A build takes half a second once Beam is imported, so the ones that tests only read are made once and shared.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from pipelines.cli import commands
from pipelines.prepare import runners, storage
from pipelines.prepare.launch.open_job import OpenJob, open_job, open_request
from pipelines.prepare.options.config import PrepareConfig, SourceConfig
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.runners import here
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest import IngestSource, IngestTask
from pipelines.prepare.sources.rows import opening, selection
from pipelines.prepare.sources.rows.reading import Source
from tests.support.processes import REPOSITORY as REPOSITORY
from tests.support.processes import environment as environment
from tfrecord_io import examples, manifest, records
from tfrecord_io.manifest import Manifest, Shard

REVIEWS = REPOSITORY / "examples" / "reviews"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> tuple[str, str]:
        """Cause and remedy. Fails unless the command ended with those two lines, and without a traceback."""
        lines = self.err.splitlines()
        assert self.status in (1, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM), self.err
        assert "Traceback" not in self.err, self.err
        assert [line.partition(": ")[0] for line in lines[-2:]] == ["error", "remedy"], self.err
        assert sum(line.startswith(("error: ", "remedy: ")) for line in lines) == 2, self.err
        return lines[-2].removeprefix("error: "), lines[-1].removeprefix("remedy: ")


_surroundings = ""
_elsewhere: dict[str, list[Any]] = {}  # idle children by the surroundings that they were started in


def _move() -> None:
    """Let only children serve that were started in this folder, environment and search path."""
    global _surroundings
    # pytest names each phase of each test in a variable.
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    surroundings = repr((os.getcwd(), environ, sys.path))
    if surroundings != _surroundings:
        _elsewhere[_surroundings] = here._idle[:]
        here._idle[:] = _elsewhere.pop(surroundings, [])
        _surroundings = surroundings
    while len(_elsewhere) > 2:
        for child in _elsewhere.pop(next(iter(_elsewhere))):
            child.end()


def idle_pids() -> set[int | None]:
    """The child processes that wait for a command, in any surroundings."""
    return {child.process.pid for child in itertools.chain(here._idle, *_elsewhere.values())}


def command(*arguments: object) -> Outcome:
    """Run `prep-tfrecords ARGUMENTS` in this process.

    The child process that looks at rows, which ends with the command elsewhere, waits for the next one in the same
    surroundings: to start it takes 1 s of CPU, and a small build a quarter of that.
    """
    _move()
    out, err = io.StringIO(), io.StringIO()
    status = 0
    kept = mock.patch.object(here, "end_idle")
    with kept, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            commands.main.main([str(argument) for argument in arguments], prog_name="prep-tfrecords")
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Outcome(status=status, out=out.getvalue(), err=err.getvalue())


def program(*arguments: object) -> list[str]:
    """The words that start `prep-tfrecords ARGUMENTS` as a process; run it in `environment()`."""
    return [sys.executable, "-m", "prep_tfrecords", *map(str, arguments)]


@contextlib.contextmanager
def started(arguments: Sequence[str], output: Path, *, shards: int, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A build into `output` as a process that can be interrupted, once it has finished some shards."""
    # Where a shell has started the tests in the background, interrupts are ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(arguments, env=environment(), **pipes, **options) as process:
        signal.signal(signal.SIGINT, before)
        try:
            while len(list(output.glob(".prep/*/train/receipt-*"))) < shards:
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.005)
            yield process
        finally:
            process.kill()


@functools.cache
def tokenizer(example: str = "reviews") -> Path:
    """The tokenizer of an example: of chats, reviews or translations."""
    folder = new_folder() / f"{example}-tokenizer"
    script = REPOSITORY / "examples" / example / "train_tokenizer.py"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert runpy.run_path(str(script))["main"]([str(folder)]) == 0
    return folder


# Examples with another tokenizer than the reviews'.
_TOKENIZERS = {"chats": "chats", "preferences": "chats", "translations": "translations"}


def tokenizer_name(example: str) -> str:
    """The example with the tokenizer for an example's rows."""
    return _TOKENIZERS.get(example, "reviews")


def tokenizer_for(example: str) -> Path:
    """The tokenizer for an example's rows."""
    return tokenizer(tokenizer_name(example))


def options(output: object, **changes: object) -> list[object]:
    """Options of a small build into `output`. `max_length=8` becomes --max-length 8, None leaves an option out, True
    makes a flag, and a tuple repeats it.
    """
    defaults = {"tokenizer": tokenizer(), "max_length": 32, "shard_size": "20kB", "workers": 1}
    arguments: list[object] = ["--output", output]
    for name, value in {**defaults, **changes}.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not None:
            values = value if isinstance(value, tuple) else (value,)
            arguments += itertools.chain.from_iterable((flag, entry) for entry in values)
    return arguments


@functools.cache
def built(dataset: Path, **changes: object) -> Path:
    """A finished build of `dataset`, made once for each choice of options. Shared: copy it before changing it."""
    output = new_folder() / "out"
    outcome = command("build", dataset, *options(output, **changes))
    assert outcome.status == 0, outcome.err
    return output


def reviews(**changes: object) -> Path:
    """A finished build of the reviews with their labels."""
    return built(REVIEWS, **{"label_column": "label", **changes})


def resolved(config: PrepareConfig) -> OpenJob:
    """The job that a build of this request would do, with what has to be ingested in its output."""
    Path(config.output.root).mkdir(parents=True, exist_ok=True)
    runner = runners.choose(config.beam_args, workers=config.workers)
    return open_job(open_request(config), runner=runner, progress=Progress())


def opened(config: SourceConfig) -> Source:
    """The dataset with its rows, as builds open it; what has to be ingested is kept as long as the session lasts."""
    opened_source = opening.open_source(config, columns=None)

    def run(source: IngestSource, tasks: Sequence[IngestTask]) -> None:
        with ingest.naming_files(source):
            here.run(functools.partial(ingest.run, source), tasks, processes=1)

    every = list(opened_source.listing.splits)  # names of string labels come from all of them
    groups = opening.locate_rows(opened_source, every, folder=str(new_folder()), inside=None, columns=None, run=run)
    return selection.select(config, opened_source, groups, ())


def source(folder: Path, **splits: Sequence[Mapping[str, Any]]) -> Path:
    """Writes each split as JSON lines, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


def read_manifest(root: object) -> Manifest:
    """The manifest of a finished build."""
    return manifest.parse(storage.read_bytes(storage.join(str(root), manifest.FILE_NAME)))


def read_rows(root: object, split: str) -> dict[str, np.ndarray]:
    """Every record of a split, in the shards' order."""
    return _joined([read_shard(root, shard) for shard in read_manifest(root).splits[split].shards])


def read_shard(root: object, shard: Shard) -> dict[str, np.ndarray]:
    """Every record of a shard; of one of a bucket's, as rows of its length."""
    facts = read_manifest(root)
    schema = facts.schema if shard.length is None else facts.bucket(shard.length).schema
    with storage.read_stream(storage.join(str(root), shard.name)) as stream:
        parts = records.read_payloads(stream, compression=facts.compression, place=shard.name)
        return _joined([examples.decode(payloads, schema, place=shard.name) for payloads in parts])


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def shard_bytes(root: Path) -> dict[str, bytes]:
    """The contents of every shard by name."""
    return {path.name: path.read_bytes() for path in sorted(root.glob("*.tfrecord*"))}


def files(root: Path) -> dict[str, bytes]:
    """The contents of every file below `root`, hidden ones too, by path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def new_folder() -> Path:
    """A folder that lasts as long as the session: inside the private home of the Hugging Face libraries."""
    return Path(tempfile.mkdtemp(prefix="built-", dir=os.environ["HF_HOME"]))


def train_shards(root: Path) -> list[Path]:
    return sorted(root.glob("*-train-*.tfrecord*"))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)
