"""Measure how fast the command answers, and the cost of a build before it tokenizes.

A build of half a megabyte is nearly all start-up. Its CPU time is divided by the CPU time of a process that only
imports pyarrow, `datasets` and `AutoTokenizer`, as any script that uses them must. Imports and builds take turns, so
the ratio hardly depends on the machine's other work.
"""

import collections
import sys

from scripts.benchmarks import figures, measure, preparing, tokenizer_training
from scripts.benchmarks.figures import spread

_HELP_RUNS = 10
_TURNS = 7
_IMPORTS = "import datasets, pyarrow; from transformers import AutoTokenizer"


def report(settings: preparing.Settings) -> str:
    """Measure `--help` and tiny builds, and return a Markdown table of their seconds."""
    measure.run([*measure.PROGRAM, "--help"])  # byte-compiles, reads from disk
    seconds = [measure.run([*measure.PROGRAM, "--help"]).seconds for _ in range(_HELP_RUNS)]
    cpu = collections.defaultdict[str, list[float]](list)
    for turn in range(_TURNS + 1):
        runs = {"imports": measure.run([sys.executable, "-c", _IMPORTS])}
        runs |= {kind: _build(settings, kind) for kind in tokenizer_training.KINDS}
        if turn:  # the first one reads from disk, and compiles kernels
            for name, run in runs.items():
                cpu[name].append(run.cpu_seconds)  # including children
    imports = cpu.pop("imports")
    times = {kind: figures.median(builds) / figures.median(imports) for kind, builds in cpu.items()}
    rows = [
        [f"`prep-tfrecords --help`, s, median of {_HELP_RUNS}", spread(seconds)],
        [f"importing pyarrow, `datasets` and `AutoTokenizer`, CPU s, median of {_TURNS}", spread(imports)],
        *([f"`build` of 0.5 MB, {kind}, CPU s", spread(builds)] for kind, builds in cpu.items()),
        *([f"the same over the imports, {kind}", figures.number(ratio)] for kind, ratio in times.items()),
    ]
    return figures.table(["start-up", "measured"], rows)


def _build(settings: preparing.Settings, kind: str) -> measure.Run:
    output = settings.workdir / "built" / f"startup-{kind}"
    folder, tokenizer = settings.corpus("tiny"), settings.tokenizer(kind)
    with measure.fresh_caches(settings.workdir) as env:
        return measure.run(preparing.build_command("pad", folder=folder, tokenizer=tokenizer, output=output), env=env)
