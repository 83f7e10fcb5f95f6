"""A real job of the size that is asked for: the reviews example, over and over."""

from __future__ import annotations

import itertools
import pathlib
import subprocess
import sys

from pipelines.prepare import storage
from pipelines.prepare.launch import ingesting, opened_request
from pipelines.prepare.launch.resolved_job import Resolved
from pipelines.prepare.options.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig

__all__ = ["config", "resolved"]

_REVIEWS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "reviews"
# Records are long and texts short, so that large shards are made in little time.
LENGTH = 512


def config(folder: pathlib.Path, *, rows: int, shard_bytes: int = 100_000_000) -> PrepareConfig:
    """A job with that many rows, to be written to `folder`/out. Its source and tokenizer are made in `folder`."""
    source, tokenizer = folder / f"source-{rows}", folder / "tokenizer"
    source.mkdir(parents=True, exist_ok=True)
    lines = (_REVIEWS / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    with (source / "train.jsonl").open("w", encoding="utf-8") as stream:
        stream.writelines(itertools.islice(itertools.cycle(lines), rows))
    if not tokenizer.is_dir():
        script = str(_REVIEWS / "train_tokenizer.py")
        subprocess.run([sys.executable, script, str(tokenizer)], check=True, capture_output=True)
    return PrepareConfig(
        source=SourceConfig(dataset=str(source)),
        tokenizer=TokenizerConfig(name=str(tokenizer)),
        layout=LayoutConfig(max_length=LENGTH),
        output=OutputConfig(root=str(folder / f"out-{rows}"), name="rehearsal", shard_bytes=shard_bytes),
    )


def resolved(config: PrepareConfig) -> Resolved:
    """The job of a request, with its rows located."""
    storage.make_folder(config.output.root)
    return ingesting.resolve(opened_request.open_request(config))
