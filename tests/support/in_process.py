"""Command lines of our programs and examples in this process, which has already imported their libraries."""

import contextlib
import io
import runpy
from collections.abc import Sequence

from tests import building
from tests.building import Outcome
from tests.train import training


def run(words: Sequence[str]) -> Outcome:
    """Run `prep-tfrecords …`, `train-tpu …` or `python SCRIPT …`."""
    program, *arguments = words
    if program == "prep-tfrecords":
        return building.command(*arguments)
    if program == "train-tpu":
        return training.run(arguments)
    assert program == "python", words
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = runpy.run_path(arguments[0])["main"](arguments[1:])
    return Outcome(status=status, out=out.getvalue(), err=err.getvalue())
