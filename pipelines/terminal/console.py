"""How a command talks: errors as two lines, the libraries quiet, an interrupt as an end and not a traceback."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from pipelines.terminal.stages import STAGES
from tfrecord_io.errors import ConfigError, PrepError
from tfrecord_io.shown import visible, visible_line, without_secrets

__all__ = ["Program", "WithBeam", "WithFunctions", "common", "errors", "fail", "quiet", "say", "unexpected"]

# Of an error's text: libraries quote whole requests and schemas.
_MOST_LETTERS = 500

Command = TypeVar("Command", bound=Callable[..., Any])


def common(command: Command) -> Command:
    """What every command takes, with errors as two lines."""
    command = click.option("--verbose", is_flag=True, help="Show the libraries' logs, and a traceback on errors.")(
        command
    )
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")(command)


class WithFunctions(click.Command):
    """A command with --map and --filter. It gets both as one parameter, `steps`: pairs of the option's name and its
    value in the order of the command line, which click itself keeps within one option only.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Looks through the arguments once for the order, and once more as every command does."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        rest = super().parse_args(ctx, args)
        values = {name: iter(ctx.params.pop(name) or ()) for name in ("map", "filter")}
        given = [str(parameter.name) for parameter in order if parameter.name in values]
        ctx.params["functions"] = tuple((name, value) for name in given for value in itertools.islice(values[name], 1))
        return rest


class WithBeam(WithFunctions):
    """Such a command that hands on to Beam what stands behind a `--`, as its parameter `beam_args`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes away what is Beam's."""
        at = args.index("--") if "--" in args else len(args)
        ctx.params["beam_args"] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


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
        _reopen_closed()
        gc.set_threshold(500_000, 50, 100)
        try:
            return self.main(*args, **kwargs)
        except SystemExit as error:
            if error.code or self.leaves_at_once:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(int(error.code or 0))
            raise


def _reopen_closed() -> None:
    """Puts nothing in place of an output that the shell has closed (`>&-`). Otherwise the next file that is opened gets
    its number, and with it whatever a library prints.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, by which schedulers stop a job."""

    signal_number = signal.SIGTERM


@contextlib.contextmanager
def errors(
    *, verbose: bool, interrupted: tuple[str, str] = ("interrupted", "run the same command again")
) -> Iterator[None]:
    """Two lines for whatever goes wrong. Status 2 for a wrong option, 128 and the signal's number after a signal, 1 for
    the rest. `interrupted` is what to say after a signal: cause and remedy.
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
    """Says what went wrong, with the traceback of the error that is being handled if `verbose`. Returns the end."""
    if verbose:
        say(traceback.format_exc().rstrip("\n"), lines=True)
    click.echo(f"error: {visible_line(cause)}", err=True)
    if remedy:
        click.echo(f"remedy: {visible_line(remedy)}", err=True)
    return SystemExit(status)


def unexpected(error: Exception, *, verbose: bool) -> SystemExit:
    """`fail` for an error that nobody foresaw."""
    lines = str(error).strip().splitlines() or ["it says no more"]
    # A runner puts the traceback of its worker into the text, which ends in what was raised there.
    said = lines[-1] if lines[0].startswith("Traceback") else " ".join(lines)
    return fail(
        f"unexpected {type(error).__name__}: {said if len(said) <= _MOST_LETTERS else said[:_MOST_LETTERS] + ' …'}",
        "run the same command again with --verbose to see where it comes from, and report it, with what that shows, to "
        "the project's issue tracker",
        status=1,
        verbose=verbose,
    )


def say(text: str, *, lines: bool = False) -> None:
    """A line for people on stderr, or several. Whatever is in it, no secret is shown, and the terminal does nothing."""
    click.echo(visible(without_secrets(text), lines=lines), err=True)


def _signal_status(error: BaseException | None) -> int:
    """The exit status after a signal, as shells give it; 0 for anything else."""
    if number := getattr(error, "signal_number", 0):
        return 128 + int(number)
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    # A job in another place, or work that can be saved, answers a signal with an error of its own.
    return _signal_status(error.__context__) if isinstance(error, PrepError) else 0


def _is_clicks(error: Exception) -> bool:
    """Whether click itself knows how to end: a wrong argument, or nobody who reads stdout any more."""
    own = isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort)
    return own or (isinstance(error, OSError) and error.errno == errno.EPIPE)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Takes SIGTERM for Ctrl-C."""
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
    """Keeps the libraries' chatter off the terminal; our own warnings stay. Says what is being done, if somebody looks
    on: opening and sampling take seconds in which nothing else is to be seen.
    """
    handler = logging.StreamHandler()
    if verbose:
        handler.setFormatter(_Shown("%(levelname)s %(name)s: %(message)s"))
        # Does nothing where somebody has set up logging before.
        logging.basicConfig(handlers=[handler], level=logging.INFO)
        yield
        return
    handler.setFormatter(_LowerCase("%(levelname)s: %(message)s"))
    logging.getLogger("pipelines").addHandler(handler)
    # A root logger without any handler would print warnings after all, and a runner's threads outlive an error.
    logging.getLogger().addHandler(logging.NullHandler())
    # transformers says at import what it will not be able to do without PyTorch, which nothing here needs.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if "datasets" in sys.modules:
        sys.modules["datasets"].disable_progress_bars()
    else:  # before it is imported, here or in a process that opens the source
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    ours = logging.getLogger("pipelines")
    level = ours.level
    if sys.stderr.isatty():
        ours.setLevel(logging.INFO)
        handler.addFilter(lambda record: record.levelno > logging.INFO or record.name == STAGES)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)


class _Shown(logging.Formatter):
    """Records of any library, with their tracebacks: without secrets, and nothing in them controls the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(without_secrets(super().format(record)), lines=True)


class _LowerCase(_Shown):
    """warning: …, as error: … and remedy: … are written; what is being done, without a word in front."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text.removeprefix("info: ") if record.levelno == logging.INFO else text

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().formatMessage(record)
