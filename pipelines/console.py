"""How a command talks: errors as two lines, the libraries quiet, an interrupt as an end and not a traceback."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from tfrecord_io.errors import ConfigError, PrepError

__all__ = ["Program", "WithSteps", "common", "errors", "quiet"]

Command = TypeVar("Command", bound=Callable[..., Any])


def common(command: Command) -> Command:
    """What every command takes, with errors as two lines."""
    command = click.option("--verbose", is_flag=True, help="Show the libraries' logs, and a traceback on errors.")(
        command
    )
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")(command)


class WithSteps(click.Command):
    """A command with --map and --filter. It gets both as one parameter, `steps`: pairs of the option's name and its
    value in the order of the command line, which click itself keeps within one option only. What stands behind a `--`
    is its parameter `beam_args`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Looks through the arguments once for the order, and once more as every command does."""
        at = args.index("--") if "--" in args else len(args)
        own, ctx.params["beam_args"] = args[:at], tuple(args[at + 1 :])
        _, _, order = self.make_parser(ctx).parse_args(list(own))
        rest = super().parse_args(ctx, own)
        values = {name: iter(ctx.params.pop(name) or ()) for name in ("map", "filter")}
        given = [str(parameter.name) for parameter in order if parameter.name in values]
        ctx.params["steps"] = tuple((name, value) for name in given for value in itertools.islice(values[name], 1))
        return rest


class Program(click.Group):
    """Called as the program, it ends the process at once after an error, and after a command that said so by
    `leaves_at_once`: threads of a runner may still be there, and nobody waits for them. Called as a function
    (`main.main(args)`), it raises SystemExit and no more.
    """

    leaves_at_once = False
    # Whether the process is there for the command alone.
    owns_process = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Half a million objects come with the imports, and nearly all of them stay: walking through them again and
        # again for garbage took a fifth of the start-up.
        self.owns_process = True
        gc.set_threshold(500_000, 50, 100)
        try:
            return self.main(*args, **kwargs)
        except SystemExit as error:
            if error.code or self.leaves_at_once:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(int(error.code or 0))
            raise


@contextlib.contextmanager
def errors(*, verbose: bool) -> Iterator[None]:
    """Two lines for an error that a user can cause; status 2 for a wrong option, 1 for the rest."""
    try:
        with _terminable():
            yield
    except PrepError as error:
        if verbose:
            logging.exception("traceback")
        click.echo(f"error: {_one_line(error.cause)}", err=True)
        if error.remedy:
            click.echo(f"remedy: {_one_line(error.remedy)}", err=True)
        raise SystemExit(2 if isinstance(error, ConfigError) else 1) from None
    except KeyboardInterrupt:
        click.echo("error: interrupted before the dataset was complete", err=True)
        click.echo("remedy: run the same command again; finished shards are kept", err=True)
        raise SystemExit(1) from None


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Takes SIGTERM, by which schedulers stop a job, for Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _one_line(text: str) -> str:
    return " ".join(text.split())


@contextlib.contextmanager
def quiet(*, verbose: bool) -> Iterator[None]:
    """Keeps the libraries' chatter off the terminal; our own warnings stay."""
    if verbose:
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)
        yield
        return
    ours = logging.StreamHandler()
    ours.setFormatter(_LowerCase("%(levelname)s: %(message)s"))
    logging.getLogger("pipelines").addHandler(ours)
    # A root logger without any handler would print warnings after all, and a runner's threads outlive an error.
    logging.getLogger().addHandler(logging.NullHandler())
    # transformers says at import what it will not be able to do without PyTorch, which nothing here needs.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if "datasets" in sys.modules:
        sys.modules["datasets"].disable_progress_bars()
    else:  # before it is imported, here or in a process that opens the source
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    try:
        yield
    finally:
        logging.getLogger("pipelines").removeHandler(ours)


class _LowerCase(logging.Formatter):
    """warning: …, as error: … and remedy: … are written."""

    def format(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().format(record)
