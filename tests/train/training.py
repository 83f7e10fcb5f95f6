"""Training runs for tests: through the command line, in this process or in a separate one."""

import contextlib
import functools
import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.train import cli
from tests import building
from tests.building import Outcome

EXAMPLES = building.REPOSITORY / "examples"


def data() -> Path:
    return building.reviews(max_length=16)


def translations() -> Path:
    """The translations as inputs and targets: a training split alone."""
    columns = {"layout": "seq2seq", "text_column": "en", "target_column": "de", "max_length": 24, "target_length": 20}
    return building.built(EXAMPLES / "translations", **columns, tokenizer=building.tokenizer("translations"))


def tags() -> Path:
    return building.built(EXAMPLES / "tags", layout="tokens", max_length=64)


def questions() -> Path:
    """The questions and windows of their texts: a training split alone."""
    columns = ("question", "context")
    return building.built(EXAMPLES / "questions", layout="qa", text_column=columns, max_length=40, stride=10)


@functools.cache
def pairs() -> Path:
    """Pairs of answers with margins, in rows of 32 tokens: 24 to train on, and 10."""
    rows = [
        {"prompt": f"The film {row} was", "chosen": f" good {row}.", "rejected": f" {'very ' * (row % 3)}bad."}
        | {"margin": row % 2}
        for row in range(34)
    ]
    source = building.source(building.new_folder() / "in", train=rows[:24], validation=rows[24:])
    options = {"layout": "preference", "keep_column": "margin", "tokenizer": building.tokenizer("chats")}
    return building.built(source, **options, max_length=32)


def options(model_dir: Path | str | None, **changes: object) -> list[str]:
    """Arguments of a short training of a small model, see `flags`."""
    defaults: dict[str, object] = {"data": data(), "task": "classify", "model": "tests.train.small:bag", "tpu": "none"}
    defaults |= {"model_dir": model_dir, "global_batch_size": 16, "steps": 8, "learning_rate": 0.01, "log_every": 1}
    defaults["json"] = True
    return flags(**{**defaults, **changes})


def flags(**options: object) -> list[str]:
    """Write options as words: `steps=8` becomes --steps 8, None leaves out, True is a flag, a tuple repeats it."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None:
            for entry in value if isinstance(value, tuple) else (value,):
                words += [flag, str(entry)]
    return words


def run(words: Sequence[str]) -> Outcome:
    """Run a command line of `train-tpu` in this process, on one replica."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main.main(words, prog_name="train-tpu")
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Outcome(status=status, out=out.getvalue(), err=err.getvalue())


def command(model_dir: Path | None, **changes: object) -> Outcome:
    return run(options(model_dir, **changes))


def done(model_dir: Path | None, **changes: object) -> Outcome:
    outcome = command(model_dir, **changes)
    assert outcome.status == 0, outcome.err
    return outcome


def program(model_dir: Path | str, *, variables: Mapping[str, str] = {}, **changes: object) -> subprocess.Popen[str]:
    """Start `scripts/train_tpu.py` as a process, with more environment variables."""
    words = [sys.executable, str(building.REPOSITORY / "scripts/train_tpu.py"), *options(model_dir, **changes)]
    return subprocess.Popen(
        words, env={**building.environment(), **variables}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def losses(out: str) -> dict[int, float]:
    lines = [json.loads(line) for line in out.splitlines()]
    return {line["step"]: line["loss"] for line in lines if "step" in line and "split" not in line}


def metrics(out: str) -> dict[str, Any]:
    return [line for line in map(json.loads, out.splitlines()) if "split" in line][-1]
