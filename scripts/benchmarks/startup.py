"""Measure how fast the command answers, and the cost of a build before it tokenizes.

A build of 400 rows is nearly all start-up. Its CPU time is divided by the CPU time of a process that only imports
pyarrow, `datasets` and `AutoTokenizer`, as any script that uses them must. Imports and builds take turns, so the ratio
hardly depends on the machine's other work.
"""

import shutil
import sys

from scripts.benchmarks import corpus, figures, measure, preparing, tokenizer_training
from scripts.benchmarks.figures import spread

_HELP_RUNS = 10
_ROWS = 400
_TURNS = 7
_IMPORTS = "import datasets, pyarrow; from transformers import AutoTokenizer"


def report(settings: preparing.Settings) -> str:
    """Return the table of this section."""
    measure.run([*measure.PROGRAM, "--help"])  # byte-compiles, reads from disk
    seconds = [measure.run([*measure.PROGRAM, "--help"]).seconds for _ in range(_HELP_RUNS)]
    imports, builds = _cpu_seconds(settings)
    rows = [
        [f"`prep-tfrecords --help`, s, median of {_HELP_RUNS}", spread(seconds)],
        [f"importing pyarrow, `datasets` and `AutoTokenizer`, CPU s, median of {_TURNS}", spread(imports)],
        *([f"`build` of {_ROWS} rows, {kind}, CPU s", spread(each)] for kind, each in builds.items()),
        *(
            [f"the same over the imports, {kind}", figures.number(figures.median(each) / figures.median(imports))]
            for kind, each in builds.items()
        ),
    ]
    return figures.table(["start-up", "measured"], rows)


def _cpu_seconds(settings: preparing.Settings) -> tuple[list[float], dict[str, list[float]]]:
    """Return the CPU seconds, including children, of the imports, and of builds by kind of tokenizer."""
    imports: list[float] = []
    builds: dict[str, list[float]] = {kind: [] for kind in tokenizer_training.KINDS}
    for turn in range(_TURNS + 1):
        run = measure.run([sys.executable, "-c", _IMPORTS])
        made = {kind: _build(settings, kind) for kind in builds}
        if turn:  # the first one reads from disk, and compiles kernels
            imports.append(run.cpu_seconds)
            for kind, each in made.items():
                builds[kind].append(each.cpu_seconds)
    return imports, builds


def _build(settings: preparing.Settings, kind: str) -> measure.Run:
    folder = corpus.first_rows(settings.workdir, num_rows=_ROWS)
    output = settings.workdir / "built" / f"startup-{kind}"
    arguments = preparing.build_arguments(
        "pad", folder=folder, tokenizer=preparing.tokenizer_folder(settings, kind), output=output
    )
    try:
        with measure.fresh_caches(settings.workdir) as env:
            return measure.run([*measure.PROGRAM, *arguments], env=env)
    finally:
        shutil.rmtree(output, ignore_errors=True)
