"""The command `prep-tfrecords tokenizer`: its options, its summary, and the progress of its training."""

from __future__ import annotations

import functools
import json
from typing import Any

import click

from pipelines.cli.parsing import WithFunctions
from pipelines.cli.request import configure, source_of, takes_source
from pipelines.prepare.options.tokenizer_options import TokenizerRequest
from pipelines.terminal.click_options import takes, values_of
from pipelines.terminal.console import common, errors, quiet

__all__ = ["train_tokenizer"]


@click.command("tokenizer", cls=WithFunctions)
@takes_source
@takes([TokenizerRequest], groups=[""], required=("output", "kind", "vocab_size"))
@common
def train_tokenizer(as_json: bool, verbose: bool, **given: Any) -> None:
    """Train a tokenizer on the texts of DATASET, named as for `build`, and write it as transformers reads it."""
    with errors(verbose=verbose):
        request = TokenizerRequest(source=source_of(given), **values_of(TokenizerRequest, given))
        with quiet(verbose=verbose):
            from pipelines.cli import report
            from pipelines.prepare.launch import tokenizer_launcher

            configure()
            trained = tokenizer_launcher.train_tokenizer(
                request, watch=functools.partial(report.watch_rows, doing="learning from")
            )
        _summary(trained)
        if as_json:
            click.echo(json.dumps(trained.to_json()))


def _summary(trained: Any) -> None:
    """Print the table at the end of a training."""
    from pipelines.cli.report import count, size
    from pipelines.terminal.tables import console, table

    out, found = console(), trained.evaluation
    made = table("split", "rows", numbers=1)
    for name, rows in trained.splits.items():
        made.add_row(name, count(rows))
    out.print(made)
    figures = table("rows", "text", "vocabulary", "tokens per word", "unknown", numbers=5)
    figures.add_row(
        count(trained.rows.trained),
        size(trained.rows.text_bytes),
        count(trained.vocab_size),
        f"{found.tokens_per_word:.3f}",
        f"{found.unknown_share:.3%}",
    )
    out.print(figures)
    out.print(
        f"tokens per word (between spaces) and the unknown share of tokens: of {found.texts:,} texts that "
        f"{'were kept out of the training' if found.held_out else 'it was trained on'}"
    )
    if trained.rows.left_out:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in trained.rows.left_out.items())
        out.print(f"rows left out: {reasons}")
    if trained.sampled_rows < sum(trained.splits.values()):
        out.print(f"a sample of {trained.sampled_rows:,} of {sum(trained.splits.values()):,} rows was read (--sample)")
    out.print(
        f"{trained.request.kind} tokenizer in the style of {trained.request.chosen_style} in {trained.request.output}, "
        f"served by the engine {found.engine}, in {trained.seconds:.1f} s"
    )
