"""The behaviour of all commands: two-line errors, quiet libraries, and an orderly end on interrupts."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO, TypeVar

import click
import cloup

from pipelines.terminal.stages import STAGES
from tfrecord_io.errors import ConfigError, PrepError
from tfrecord_io.shown import visible, visible_line, without_secrets

__all__ = [
    "Program",
    "TwoLineErrors",
    "common",
    "errors",
    "fail",
    "is_quiet",
    "quiet",
    "results",
    "say",
    "show",
    "shows_progress",
    "unexpected",
    "usage_cause",
]

# The most that is shown of an unexpected error: libraries quote whole requests and schemas.
_MOST_CHARACTERS = 500

Command = TypeVar("Command", bound=Callable[..., Any])


def common(command: Command) -> Command:
    """Give a command the options that every command takes."""
    return cloup.option_group(
        "Messages",
        click.option("--json", "as_json", is_flag=True, callback=_note, help="Print the result as JSON on stdout."),
        click.option(
            "--quiet", "-q", is_flag=True, expose_value=False, callback=_note, help="Show warnings and errors only."
        ),
        click.option(
            "--no-progress", is_flag=True, expose_value=False, callback=_note, help="Show no progress while it runs."
        ),
        click.option("--verbose", "-v", is_flag=True, help="Show the libraries' logs, and a traceback on errors."),
    )(command)


def _note(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[f"{__name__}.{parameter.name}"] = value
    return value


def is_quiet() -> bool:
    """Return whether the running command shows warnings and errors only."""
    return _is_noted("quiet")


def shows_progress() -> bool:
    """Return whether the running command shows how far it is."""
    return not (_is_noted("quiet") or _is_noted("no_progress"))


def results() -> TextIO:
    """Return the stream for results that people read: stdout, or stderr beside the JSON of --json."""
    return sys.stderr if _is_noted("as_json") else sys.stdout


def _is_noted(name: str) -> bool:
    ctx = click.get_current_context(silent=True)
    return bool(ctx and ctx.meta.get(f"{__name__}.{name}"))


class _WrongUsage(click.UsageError):
    """A wrong option or argument, shown in the two lines of every error."""

    def show(self, file: Any = None) -> None:
        where = f"`{self.ctx.command_path} --help`" if self.ctx else "--help"
        click.echo(f"error: {visible_line(self.message)}", file=file, err=True)
        click.echo(f"remedy: see {where}", file=file, err=True)


@contextlib.contextmanager
def _in_two_lines() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise _WrongUsage(usage_cause(error), ctx=error.ctx) from None


def usage_cause(error: click.UsageError) -> str:
    """Return what click says of a wrong option, in the form of our own causes."""
    said = error.format_message().removesuffix(".")
    return said[:1].lower() + said[1:]


class TwoLineErrors(click.Group):
    """A group of commands whose wrong options are reported as other errors are: cause and remedy."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _in_two_lines():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _in_two_lines():
            return super().invoke(ctx)


class Program(TwoLineErrors):
    """The group of all commands.

    Called as the program, it ends the process at once after an error, and after a command that sets `leaves_at_once`:
    threads of a runner may still run, and need not be waited for. Called as a function (`main.main(args)`), it only
    raises SystemExit.
    """

    leaves_at_once = False
    # Whether the process runs nothing but the command.
    owns_process = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Imports make half a million objects, nearly all of which stay: searching them for garbage again and again
        # took a fifth of the start-up, and once 0.2 s. Batches of rows are freed without such a search.
        self.owns_process = True
        _reopen_closed()
        gc.set_threshold(2_000_000, 50, 100)
        try:
            return self.main(*args, **kwargs)
        except SystemExit as error:
            if error.code or self.leaves_at_once:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(int(error.code or 0))
            raise


def _reopen_closed() -> None:
    """Replace an output that the shell has closed (`>&-`) by the null device.

    Otherwise the next file that is opened gets its descriptor, and whatever a library prints is written there.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, with which schedulers stop a job."""

    signal_number = signal.SIGTERM


@contextlib.contextmanager
def errors(
    *, verbose: bool, interrupted: tuple[str, str] = ("interrupted", "run the same command again")
) -> Iterator[None]:
    """Report any error as two lines, and exit.

    The exit status is 2 for a wrong option, 128 plus the number of a signal, and 1 for other errors. `interrupted` is
    the message after a signal: cause and remedy.
    """
    try:
        with _terminable():
            yield
    except PrepError as error:
        status = _signal_status(error) or (2 if isinstance(error, ConfigError) else 1)
        raise fail(error.cause, error.remedy, status=status, verbose=verbose) from None
    except KeyboardInterrupt as signalled:
        raise fail(*interrupted, status=_signal_status(signalled), verbose=False) from None
    except Exception as error:
        if _is_clicks(error):
            raise
        raise unexpected(error, verbose=verbose) from None


def fail(cause: str, remedy: str, *, status: int, verbose: bool) -> SystemExit:
    """Print cause and remedy, and the traceback of the current error if `verbose`; return the SystemExit to raise."""
    if verbose:
        say(traceback.format_exc().rstrip("\n"), lines=True)
    click.echo(f"error: {visible_line(cause)}", err=True)
    if remedy:
        click.echo(f"remedy: {visible_line(remedy)}", err=True)
    return SystemExit(status)


def unexpected(error: Exception, *, verbose: bool) -> SystemExit:
    """Report an error that is not a PrepError, as `fail` does."""
    lines = str(error).strip().splitlines() or ["no message"]
    # A runner quotes its worker's traceback, whose last line is the error.
    text = lines[-1] if lines[0].startswith("Traceback") else " ".join(lines)
    text = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"
    return fail(
        f"unexpected {type(error).__name__}: {text}",
        "run the same command again with --verbose, and report its output to the project's issue tracker",
        status=1,
        verbose=verbose,
    )


def say(text: str, *, lines: bool = False) -> None:
    """Print a line, or several, on stderr, without secrets, and with escape sequences spelt out."""
    click.echo(visible(without_secrets(text), lines=lines), err=True)


def show(text: str, *, lines: bool = False) -> None:
    """Print a result, as `say` prints a message."""
    click.echo(visible(without_secrets(text), lines=lines), file=results())


def _signal_status(error: BaseException | None) -> int:
    """Return the exit status after a signal, as in shells; 0 for other errors."""
    if number := getattr(error, "signal_number", 0):
        return 128 + int(number)
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    # On a signal, a job elsewhere and a training run raise errors of their own.
    return _signal_status(error.__context__) if isinstance(error, PrepError) else 0


def _is_clicks(error: Exception) -> bool:
    """Return whether click handles the error: a wrong argument, or a closed stdout."""
    own = isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort)
    return own or (isinstance(error, OSError) and error.errno == errno.EPIPE)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise _TerminatedError

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def quiet(*, verbose: bool) -> Iterator[None]:
    """Show no logs of libraries, but our own warnings; on a terminal also the stages of the command.

    Opening and sampling take seconds in which nothing else would be shown.
    """
    handler = logging.StreamHandler()
    if verbose:
        handler.setFormatter(_SafeFormatter("%(levelname)s %(name)s: %(message)s"))
        # Has no effect if logging is already configured.
        logging.basicConfig(handlers=[handler], level=logging.INFO)
        yield
        return
    handler.setFormatter(_LowerCaseFormatter("%(levelname)s: %(message)s"))
    logging.getLogger("pipelines").addHandler(handler)
    # Without a handler at the root, Python prints warnings, and a runner's threads outlive this context.
    logging.getLogger().addHandler(logging.NullHandler())
    ours = logging.getLogger("pipelines")
    level = ours.level
    if sys.stderr.isatty() and shows_progress():
        ours.setLevel(logging.INFO)
        handler.addFilter(lambda record: record.levelno > logging.INFO or record.name == STAGES)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)


class _SafeFormatter(logging.Formatter):
    """Formats records without secrets, and with escape sequences spelt out."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(without_secrets(super().format(record)), lines=True)


class _LowerCaseFormatter(_SafeFormatter):
    """Formats records as `warning: …`, like `error: …` and `remedy: …`; stages of the command have no prefix."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text.removeprefix("info: ") if record.levelno == logging.INFO else text

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().formatMessage(record)
