"""The command `prep-tfrecords tokenizer`: its options, its summary, and the progress of its training."""

from __future__ import annotations

import json
from typing import Any

import click

from pipelines.cli import own_process
from pipelines.cli.parsing import WithFunctions
from pipelines.cli.request import read_template, source_of, takes_source
from pipelines.prepare.options.tokenizer_options import KINDS, STYLES
from pipelines.terminal.console import common, errors, quiet

__all__ = ["train_tokenizer"]


@click.command("tokenizer", cls=WithFunctions)
@takes_source
@click.option("--output", "-o", required=True, metavar="DIR", help="Folder or gs:// address of the tokenizer.")
@click.option("--kind", required=True, type=click.Choice(KINDS), help="How words are cut into tokens.")
@click.option("--vocab-size", required=True, type=int, metavar="N", help="Tokens in all, special ones included.")
@click.option(
    "--style",
    type=click.Choice(STYLES),
    help="Whose normalizer, special tokens and rows. Default: bert, for byte-bpe gpt2, bpe llama, unigram albert.",
)
@click.option(
    "--special-token", "special_tokens", multiple=True, metavar="TEXT", help="One more special token. Repeatable."
)
@click.option(
    "--min-frequency", type=int, default=0, show_default=True, metavar="N", help="Merge no pair that occurs less often."
)
@click.option("--limit-alphabet", type=int, metavar="N", help="The most characters to have. Default: all of the text.")
@click.option("--max-length", type=int, metavar="N", help="Tokens that the model takes. Default: the style's.")
@click.option("--chat-template", metavar="FILE", type=click.Path(), help="File with a chat template in Jinja.")
@click.option(
    "--lowercase/--no-lowercase", default=None, help="Whether case is lost, for bert and albert. Default: yes."
)
@click.option(
    "--evaluation-rows",
    type=int,
    default=1000,
    show_default=True,
    metavar="N",
    help="Rows to keep out of the training for the figures of the summary, at most one in a hundred.",
)
@click.option(
    "--sample",
    metavar="ROWS|SIZE",
    help="Learn from so many rows (1000000) or so much text (2GB), spread evenly, if all is beyond memory.",
)
@click.option("--workers", "--num-proc", type=int, metavar="N", help="Threads. Default: every core.")
@click.option("--overwrite", is_flag=True, help="Replace a tokenizer that this command has made.")
@common
def train_tokenizer(
    *,
    output: str,
    kind: Any,
    vocab_size: int,
    style: Any,
    special_tokens: tuple[str, ...],
    min_frequency: int,
    limit_alphabet: int | None,
    max_length: int | None,
    chat_template: str | None,
    lowercase: bool | None,
    evaluation_rows: int,
    sample: str | None,
    workers: int | None,
    overwrite: bool,
    as_json: bool,
    verbose: bool,
    **source: Any,
) -> None:
    """Train a tokenizer on the texts of DATASET, named as for `build`, and write it as transformers reads it."""
    with errors(verbose=verbose):
        from pipelines.prepare.options.tokenizer_options import TokenizerRequest

        request = TokenizerRequest(
            source=source_of(source),
            output=output,
            kind=kind,
            vocab_size=vocab_size,
            style=style,
            special_tokens=special_tokens,
            min_frequency=min_frequency,
            limit_alphabet=limit_alphabet,
            max_length=max_length,
            chat_template=chat_template and read_template(chat_template),
            lowercase=lowercase,
            evaluation_rows=evaluation_rows,
            **_sample(sample),
            overwrite=overwrite,
            workers=workers,
        )
        with quiet(verbose=verbose):
            from pipelines.cli import report
            from pipelines.prepare.launch import tokenizer_launcher

            own_process.configure()
            trained = tokenizer_launcher.train_tokenizer(request, watch=report.watch_rows)
        _summary(trained)
        if as_json:
            click.echo(json.dumps(trained.to_json()))


def _sample(text: str | None) -> dict[str, int]:
    """Return the keywords of the request for --sample: rows, or bytes if there is a unit. Raises: ConfigError."""
    from pipelines.prepare.options.output_config import parse_size

    if text is None:
        return {}
    return {"sample_rows": int(text)} if text.isdecimal() else {"sample_bytes": parse_size(text, option="--sample")}


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
