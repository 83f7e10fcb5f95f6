"""Common behaviour of all commands: errors in two lines, quiet libraries, and a clean end after interrupts."""

import contextlib
import errno
import functools
import gc
import io
import itertools
import json
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import click
import cloup

from pipelines.stages import STAGES
from pipelines.terminal.click_options import DeclaredOption
from pipelines.terminal.ending import own_temporary_folder, terminable
from tfrecord_io.errors import ConfigError, PrepError
from tfrecord_io.shown import bounded, visible, visible_line, without_secrets

_MOST_CHARACTERS = 500
_INTERRUPTED = ("interrupted", "run the same command again")
_MORE_MEMORY = (
    "give the process more memory (`ulimit -v`, a container's limit), or use a smaller --shard-size or fewer --workers"
)
_QUIET = "Show warnings and errors only."
_MESSAGE_FLAGS = ("--json", "--quiet", "-q", "--no-progress", "--verbose", "-v")


def common(*, interrupted: tuple[str, str] = _INTERRUPTED, progress: bool = True) -> Callable[[Any], Any]:
    """Return a decorator that gives a command the common options, errors in two lines (`errors`) and quiet libraries.

    `interrupted`: see `errors`. `progress`: whether to add --no-progress.
    """

    def decorate(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def run(*, as_json: bool, quiet: bool, verbose: bool, no_progress: bool = False, **options: Any) -> None:
            del as_json, quiet, no_progress  # `_is_given` reads them
            with errors(verbose=verbose, interrupted=interrupted), _quiet(verbose=verbose):
                command(**options)

        flag = functools.partial(click.option, is_flag=True)
        return cloup.option_group(
            "Messages",
            flag("--json", "as_json", help="Print the result as JSON on stdout."),
            flag("--quiet", "-q", cls=DeclaredOption, brief=_QUIET, help=_QUIET),
            *([flag("--no-progress", help="Show no progress.")] if progress else []),
            flag("--verbose", "-v", help="Show the libraries' logs, and a traceback on errors."),
        )(run)

    return decorate


def _is_given(flag: str) -> bool:
    context = click.get_current_context(silent=True)
    return bool(context and context.params.get(flag))


def is_quiet() -> bool:
    """Return whether the running command shows only warnings and errors."""
    return _is_given("quiet")


def is_verbose() -> bool:
    """Return whether the running command shows the libraries' logs."""
    return _is_given("verbose")


def shows_progress() -> bool:
    return not (_is_given("quiet") or _is_given("no_progress"))


def results() -> TextIO:
    """Return the stream for results as text: stdout, or stderr with --json."""
    return sys.stderr if _is_given("as_json") else sys.stdout


def write_json(content: Any) -> None:
    """Print a result as JSON on stdout if --json was given."""
    if _is_given("as_json"):
        click.echo(json.dumps(content))


class TwoLineErrors(click.Group):
    """Command group that reports wrong options in two lines: the error, and the remedy."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _replace_streams()
        with own_temporary_folder():
            return self.main(*args, **kwargs)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            status = error.exit_code
        except click.UsageError as error:
            page = f"`{error.ctx.command_path} --help`" if error.ctx else "--help"
            cause = error.format_message().removesuffix(".")
            status = _fail(cause[:1].lower() + cause[1:], f"see {page}", status=error.exit_code).code
        except ConfigError as error:  # in a file of options
            status = _fail(error.cause, error.remedy, status=2).code
        except click.Abort:  # before the command starts
            status = 1
        sys.exit(status)


class Program(TwoLineErrors):
    """All commands of a program.

    As the program (`main()`), it ends the process after an error, and after a command that sets `leaves_at_once`,
    without waiting for a runner's threads. As a function (`main.main(args)`), it raises SystemExit.
    """

    leaves_at_once = False
    # Whether the process runs only this program.
    owns_process = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Move message flags, such as --quiet, to after the command's name.
        own = {flag for parameter in self.params for flag in parameter.opts}
        flags = [*itertools.takewhile(lambda flag: flag in _MESSAGE_FLAGS and flag not in own, args)]
        at = len(flags)
        return super().parse_args(ctx, [*args[at : at + 1], *flags, *args[at + 1 :]])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.owns_process = True
        # Imported objects stay, and collecting them repeatedly took a fifth of the start-up.
        gc.set_threshold(2_000_000, 50, 100)
        # google-api-core warns about Python 3.10.
        warnings.filterwarnings("ignore", "You are using a (non-supported )?Python version", FutureWarning)
        try:
            return super().__call__(*args, **kwargs)
        except SystemExit as error:
            if not error.code and not self.leaves_at_once:
                raise
            status = int(error.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _Unending(io.FileIO):
    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:  # the reader has left, as in `build … | head`; complete the dataset
            return memoryview(content).nbytes


def _replace_streams() -> None:
    # A character that the terminal's encoding lacks becomes "?".
    sys.stdout, sys.stderr = _unending(sys.stdout, errors="replace"), _unending(sys.stderr)
    # With a closed output (`>&-`), libraries would print into the next opened file.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _unending(stream: TextIO, *, errors: str | None = None) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    raw = io.BufferedWriter(_Unending(stream.fileno(), "w", closefd=False))
    errors = errors or stream.errors
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors=errors, line_buffering=stream.line_buffering)


@contextlib.contextmanager
def errors(*, verbose: bool, interrupted: tuple[str, str] = _INTERRUPTED) -> Iterator[None]:
    """Report any error inside the context in two lines, and exit.

    The status is 2 for a wrong option, 128 plus a signal's number, or otherwise 1. `verbose`: show a traceback, too.
    `interrupted`: cause and remedy to show after a signal.
    """
    try:
        with terminable():
            yield
    except PrepError as error:
        status = _signal_status(error) or (2 if isinstance(error, ConfigError) else 1)
        remedy = _MORE_MEMORY if _is_of_memory(error) else error.remedy
        raise _fail(error.cause, remedy, status=status, verbose=verbose) from None
    except KeyboardInterrupt as signalled:
        raise _fail(*interrupted, status=_signal_status(signalled)) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:  # a closed stdout, which click handles
            raise
        lines = str(error).strip().splitlines() or ["no message"]
        # A runner quotes its worker's traceback, which ends with the error.
        text = lines[-1] if lines[0].startswith("Traceback") else " ".join(lines)
        text = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"
        remedy = "run the same command again with --verbose, and report the output to the project's issue tracker"
        remedy = _MORE_MEMORY if _is_of_memory(error) else remedy
        raise _fail(f"unexpected {type(error).__name__}: {text}", remedy, status=1, verbose=verbose) from None


def _is_of_memory(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _fail(cause: str, remedy: str, *, status: int, verbose: bool = False) -> SystemExit:
    if verbose:
        say(traceback.format_exc().rstrip("\n"), lines=True)
    click.echo(f"error: {visible_line(cause)}", err=True)
    if remedy:
        click.echo(f"remedy: {visible_line(remedy)}", err=True)
    return SystemExit(status)


def say(text: str, *, lines: bool = False) -> None:
    """Print `text` on stderr, without secrets and escape sequences. `lines`: whether it may have several lines."""
    click.echo(visible(without_secrets(text), lines=lines), err=True)


def show(text: str, *, lines: bool = False) -> None:
    """Print a result on the stream `results()`, without secrets or escape sequences. `lines`: keep line breaks."""
    click.echo(visible(without_secrets(text), lines=lines), file=results())


def _signal_status(error: BaseException | None) -> int:
    if number := getattr(error, "signal_number", 0):
        return 128 + int(number)
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    # Remote jobs and training runs raise a PrepError after a signal.
    return _signal_status(error.__context__) if isinstance(error, PrepError) else 0


@contextlib.contextmanager
def _quiet(*, verbose: bool) -> Iterator[None]:
    handler, ours = logging.StreamHandler(), logging.getLogger("pipelines")
    if verbose:
        handler.setFormatter(_SafeFormatter("%(levelname)s %(name)s: %(message)s"))
        # No effect if logging is already configured.
        logging.basicConfig(handlers=[handler], level=logging.INFO)
        yield
        return
    handler.setFormatter(_SafeFormatter("%(shown)s%(message)s"))
    ours.addHandler(handler)
    # Without a handler at the root, Python would print warnings itself.
    logging.getLogger().addHandler(logging.NullHandler())
    level = ours.level
    if sys.stderr.isatty() and shows_progress():
        ours.setLevel(logging.INFO)
        handler.addFilter(lambda record: record.levelno > logging.INFO or record.name == STAGES)
    else:
        handler.setLevel(logging.WARNING)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)


class _SafeFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        record.shown = getattr(record, "shown", level)
        return visible(bounded(without_secrets(super().format(record))), lines=True)
