"""Trainings of one backend in one process, all from the same first weights, since Keras has one backend in a process:

    python -m tests.train.backend_runs jax '[["--data", ...], ["predict", ...]]'

Writes a line of JSON for each command line: its exit status, and what it wrote to stdout and stderr.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.train import backends, cli
from tests import building
from tests.building import Outcome

__all__ = ["run"]


def run(
    backend: str, commands: Sequence[Sequence[str]], *, variables: Mapping[str, str] = {}, nudged: bool = False
) -> list[Outcome]:
    """Run command lines of `train-tpu` in a process of a backend, with more environment variables. `nudged`: with first
    weights that differ by one rounding.
    """
    words = [sys.executable, "-m", "tests.train.backend_runs", backend, json.dumps(commands), *["nudged"] * nudged]
    ended = subprocess.run(
        words, env={**building.environment(), **variables}, text=True, capture_output=True, timeout=1800
    )
    assert ended.returncode == 0, ended.stderr
    # Gloo writes there too.
    return [Outcome(**json.loads(line)) for line in ended.stdout.splitlines() if line.startswith("{")]


def with_known_weights(build: Any, *, nudged: bool = False) -> Any:
    """The function that builds models, with matrices that are the same on any backend; vectors are, anyway."""

    def built(*arguments: Any) -> Any:
        made = build(*arguments)
        for number, variable in enumerate(made.model.trainable_variables):
            if len(variable.shape) > 1:
                draws = np.random.default_rng([5, number])
                values = draws.normal(scale=0.05, size=variable.shape).astype(np.float32)
                variable.assign(np.nextafter(values, np.float32(1)) if nudged else values)
        return made

    return built


def main() -> None:
    backend, commands, *nudged = sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:]
    backends.load(verbose=False, backend=backend)  # type: ignore[arg-type]
    from pipelines.train import models

    models.build = with_known_weights(models.build, nudged=bool(nudged))
    for words in commands:
        out, err, status = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main.main(words, prog_name="train-tpu")
            except SystemExit as ended:
                status = int(ended.code or 0)
        print(json.dumps({"status": status, "out": out.getvalue(), "err": err.getvalue()}), flush=True)


if __name__ == "__main__":
    main()
