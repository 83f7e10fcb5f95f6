"""How a worker's error comes back to the launcher.

    where the worker runs                what comes back
    a thread of the launcher's process   the error itself, remembered by its run
    another process, here or elsewhere   the runner's text, with the error in it as one line of JSON
    nowhere any more                     what Beam says of a connection that broke

Whatever happens in another process ends as a PrepError. Its traceback was printed there, or is in the runner's log.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from tfrecord_io import errors
from tfrecord_io.errors import PrepError
from tfrecord_io.shown import cause_without_secrets

__all__ = ["AGAIN", "Failures", "Reported", "from_text", "reported_in"]

Result = TypeVar("Result")

AGAIN = "run the same command again; finished shards are kept"

_MARK = "prep-tfrecords error "

# What a runner says of things that no code of ours could report: a pattern, the cause, the remedy.
_KNOWN = (
    (
        r"ModuleNotFoundError: No module named '([^']+)'",
        "a worker has no module {0}",
        "install prep-tfrecords, in the version used here, where the workers run",
    ),
    (
        r"already (?:an )?active job named ([\w-]+)",
        "a Dataflow job of the name {0} is at work: another launcher has started this very build",
        "wait for it, or end it with `gcloud dataflow jobs cancel`; then run the same command again",
    ),
    (
        r"Dataflow pipeline failed\. State: (CANCELLED|CANCELLING|DRAINED|DRAINING|STOPPED|UPDATED)",
        "the Dataflow job ended in the state {0}, expected DONE",
        AGAIN,
    ),
    (
        r"Dataflow pipeline failed\. State: (\w+), Error:\s+None",
        "the Dataflow job ended in the state {0}, and no reason was given",
        f"look at the job's page for one; when it is mended, {AGAIN}",
    ),
    (
        r"StatusCode\.DEADLINE_EXCEEDED()",
        "the job was not done within --job_server_timeout",
        "leave it out, or give a larger one; the job itself may be at work still",
    ),
    (
        r"StatusCode\.\w+\s+details = \"([^\"\n]*)",
        "the connection to the job service or to a worker broke: {0}",
        f"see in their logs why, start them again if they are gone, and {AGAIN}",
    ),
    (
        r"java\.net\.ConnectException: ([^\n]*)",
        "the engine cannot reach a worker or a worker pool: {0}",
        f"start the pool, or correct --environment_config, and {AGAIN}",
    ),
    (
        r"StatusRuntimeException: CANCELLED: client cancelled()",
        "a worker process died in the middle of its work",
        f"{AGAIN}; if the machine ran out of memory, use fewer workers",
    ),
    (
        r"RuntimeError: Channel closed prematurely()",
        "a worker process died in the middle of its work",
        f"{AGAIN}; if the machine ran out of memory, use fewer workers",
    ),
)


class Reported(Exception):
    """A PrepError on its way through a runner that hands on nothing but text."""

    @classmethod
    def of(cls, error: PrepError) -> Reported:
        """The error as a text that `from_text` finds in any other."""
        facts = {"kind": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
        return cls(_MARK + json.dumps(facts))


def from_text(text: str) -> PrepError:
    """What is behind a runner's message about a failed job."""
    if (reported := reported_in(text)) is not None:
        return reported
    for pattern, cause, remedy in _KNOWN:
        if found := re.search(pattern, text):
            return PrepError(cause.format(*found.groups()), remedy=remedy)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason was given")
    return PrepError(
        f"the job failed: {last}", remedy=f"look into the runner's log, or add --verbose; when it is mended, {AGAIN}"
    )


def reported_in(text: str) -> PrepError | None:
    """The error that a worker raised and a runner's message holds, or None."""
    _, mark, rest = text.partition(_MARK)
    if not mark:
        return None
    try:
        facts, _ = json.JSONDecoder().raw_decode(rest)
    except json.JSONDecodeError:  # a runner may cut long messages
        return None
    return getattr(errors, facts["kind"])(facts["cause"], remedy=facts["remedy"])


class Failures:
    """The errors of one run's workers, where these are threads of the launcher's process. When one has failed, the
    others stop at their next shard.

    In other processes nobody watches and nothing is remembered: there, a shard that failed may be tried again.
    """

    def __init__(self) -> None:
        self._seen: list[Exception] = []
        self._is_watched = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """For the launcher, around the job. Raises: the first error that a worker here had, in place of any other."""
        self._is_watched = True
        try:
            yield
        except KeyboardInterrupt:
            self._seen.append(PrepError("interrupted"))  # threads are still at work, and stop at their next shard
            raise
        except Exception as error:
            if self._seen:
                raise self._seen[0] from error
            raise
        if self._seen:
            raise self._seen[0]

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """For the workers: what `work` gives. Where the launcher watches, None instead of an error, which it raises
        itself, and of all work after that: what Beam hears of, it prints with a traceback.

        Raises: Reported in another process, in place of a PrepError.
        """
        if self._seen:
            return None
        try:
            return work()
        except Exception as error:
            if self._is_watched:
                self._seen.append(error)
                return None
            if isinstance(error, PrepError):
                # The runner's text has the traceback in it, with all causes.
                raise Reported.of(error) from cause_without_secrets(error)
            raise
