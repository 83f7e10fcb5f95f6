"""Several commands of `train-tpu` in one process: `python -m tests.cloud.training_commands '[["predict", ...], ...]'`.

To import TensorFlow takes longer than most of them. Writes JSON: of each its exit status, and what it wrote to stderr.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from pipelines.train import cli

__all__: list[str] = []


def _run(words: list[str]) -> tuple[int, str]:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            cli.main.main(words, prog_name="train-tpu")
        except SystemExit as ended:
            return int(ended.code or 0), said.getvalue()
    raise AssertionError("click ends every command with SystemExit")


if __name__ == "__main__":
    print(json.dumps([_run(words) for words in json.loads(sys.argv[1])]))
