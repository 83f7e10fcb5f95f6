"""How fast the command answers, what the smallest build costs, and whether preparing data stays free of TensorFlow."""

from __future__ import annotations

import pathlib
import shutil
import sys

from scripts.benchmarks import figures, measure, preparing
from scripts.benchmarks.figures import Figure, spread

__all__ = ["report"]

_HELP_RUNS = 10
_BUILD_RUNS = 5
# What no build of a text can do without.
_IMPORTS = "import pyarrow, apache_beam; from transformers import AutoTokenizer"
# In the process itself, after a whole build: a lazy import on the way would be seen too.
_BUILD_AND_LOOK = """
import json, sys
from pipelines.cli.commands import main
main(sys.argv[1:], prog_name="prep-tfrecords", standalone_mode=False)
print(json.dumps({"tensorflow": "tensorflow" in sys.modules}))
"""


def report(settings: preparing.Settings) -> tuple[str, list[Figure]]:
    """The table of this section, and its figures with a bar."""
    program = _program()
    measure.run([*program, "--help"])  # byte-compiles, reads from disk
    seconds = [measure.run([*program, "--help"]).seconds for _ in range(_HELP_RUNS)]
    imported = _imports_tensorflow(settings)
    builds, imports = _cpu_seconds(settings)
    ratio = figures.median(builds) / figures.median(imports)
    rows = [
        ["`prep-tfrecords --help`, s", spread(seconds)],
        ["`build` on some 400 rows, CPU s", spread(builds)],
        ["imports of pyarrow, Beam and AutoTokenizer alone, CPU s", spread(imports)],
        ["TensorFlow imported by a build", "yes" if imported else "no"],
    ]
    name = "CPU seconds of `build` on some 400 rows, over those of importing pyarrow, Beam and AutoTokenizer"
    found = [
        Figure(name=name, measured=ratio, at_most=1.5, unit="x"),
        Figure(name="`prep-tfrecords --help`", measured=figures.median(seconds), at_most=0.5, unit=" s"),
        Figure(name="processes of the prepare side that import TensorFlow", measured=int(imported), at_most=0),
    ]
    return figures.table(["start-up", f"median of {_HELP_RUNS}, of CPU seconds {_BUILD_RUNS}"], rows), found


def _cpu_seconds(settings: preparing.Settings) -> tuple[list[float], list[float]]:
    """CPU seconds of small builds, and of imports alone, in turns."""
    preparing.run(settings, preparing.TINY)  # compiles, reads from disk
    builds, imports = [], []
    for _ in range(_BUILD_RUNS):
        builds.append(preparing.run(settings, preparing.TINY).cpu_seconds)
        imports.append(measure.run([sys.executable, "-c", _IMPORTS], env={"HF_HUB_OFFLINE": "1"}).cpu_seconds)
    return builds, imports


def _program() -> list[str]:
    """The installed command, or the module where the package is used from a checkout."""
    beside_python = pathlib.Path(sys.executable).with_name("prep-tfrecords")
    return [str(beside_python)] if beside_python.exists() else [sys.executable, "-m", "pipelines.cli"]


def _imports_tensorflow(settings: preparing.Settings) -> bool:
    output = preparing.built(settings, preparing.TINY)
    shutil.rmtree(output, ignore_errors=True)
    with measure.fresh_caches(settings.workdir) as env:
        arguments = preparing.tiny_build_arguments(settings)
        run = measure.run([sys.executable, "-c", _BUILD_AND_LOOK, *arguments], env=env)
    shutil.rmtree(output, ignore_errors=True)
    return bool(run.result["tensorflow"])
