"""Run the steps of pages that need TensorFlow, in one separate process: training runs first, then blocks of Python.

    python -m tests.support.page_runner STEPS        STEPS: JSON, a list of [place, kind, what]

The working directory is the copy in which the pages' other commands ran. A step of kind "train" is a list of words for
`train-tpu`; a training run is cut to two steps on one part of the CPU, since with more parts TensorFlow's collectives
would allow only one training run per process. A step of kind "python" is source text. Prints JSON: place and reason of
each failed step.
"""

import contextlib
import io
import itertools
import json
import shutil
import subprocess
import sys
import traceback

from tests.support.processes import REPOSITORY

# The last value of an option counts.
_SHORT = ("--steps", "2", "--warmup", "1", "--replicas", "1", "--log-every", "1", "--steps-per-call", "1")


_trained: dict[tuple[tuple[str, str], ...], str] = {}


def _train(words: list[str]) -> None:
    """Run a command line. A training run of data, a task and a model that were trained before is that one, copied."""
    from pipelines.train import cli

    training = words[0] not in cli.main.commands  # `predict` and `export` have no steps
    pairs = list(itertools.pairwise(words))
    key = tuple(pair for pair in pairs if pair[0] in ("--data", "--task", "--model", "--pooling"))
    if training and key in _trained:
        shutil.copytree(_trained[key], dict(pairs)["--model-dir"])
        return
    short = _SHORT if training else ()
    try:
        cli.main.main([*words, *short, "--verbose"], prog_name="train-tpu")
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"exit status {ended.code}") from None
    if training:
        _trained[key] = dict(pairs)["--model-dir"]


def _failure(kind: str, step: list[str] | str) -> str:
    """Return a step's output and traceback, "" if it succeeded."""
    if "KERAS_BACKEND" in step:  # which is decided once in a process
        # XLA takes most of the time, and half as long for half of the layers.
        smaller = str(step).replace("num_layers=2", "num_layers=1").replace("epochs=3", "epochs=1")
        ended = subprocess.run([sys.executable, "-c", smaller], capture_output=True, text=True)
        return ended.stderr[-2000:] if ended.returncode else ""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if kind == "train":
                _train(list(step))
            else:
                exec(compile(str(step), "<page>", "exec"), {"__name__": "page"})
    except BaseException:
        return printed.getvalue()[-2000:] + traceback.format_exc()
    return ""


def main(steps: list[tuple[str, str, list[str] | str]]) -> None:
    """Run the steps, *-tiny with one layer for two, and print those that failed."""
    from pipelines.train.models import backbones

    backbones._SIZES["tiny"] = (1, *backbones._SIZES["tiny"][1:])
    failures = [(place, _failure(kind, step)) for place, kind, step in steps]
    print(json.dumps([(place, why) for place, why in failures if why]))


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    main(json.loads(sys.argv[1]))
