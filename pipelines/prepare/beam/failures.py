"""Transport of errors from workers to the launcher.

    where the worker runs                what comes back
    the launcher's process, and those    the error itself, remembered by its run
      of its own (process.workers)
    a runner's process, anywhere         the runner's text, which contains the error as one line of JSON
    a runner's process that died         Beam's message about a broken connection

Any error in a runner's process becomes a PrepError. Its traceback was printed there, or is in the runner's log.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import Shared
from tfrecord_io import errors
from tfrecord_io.errors import PrepError
from tfrecord_io.shown import cause_without_secrets

Result = TypeVar("Result")

AGAIN = "run the same command again; finished shards are kept"

_ERROR_PREFIX = "prep-tfrecords error "

# Messages of runners about failures that our code could not report: pattern, cause, remedy.
_KNOWN = (
    (
        r"ModuleNotFoundError: No module named '([^']+)'",
        "a worker has no module {0}",
        "install prep-tfrecords, in the version used here, where the workers run",
    ),
    (
        r"already (?:an )?active job named ([\w-]+)",
        "a Dataflow job named {0} is running: another launcher has started the same build",
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
        f"look at the job's page for one; when it is fixed, {AGAIN}",
    ),
    (
        r"StatusCode\.DEADLINE_EXCEEDED()",
        "the job was not done within --job_server_timeout",
        "leave it out, or give a larger one; the job itself may still be running",
    ),
    (
        r"StatusCode\.\w+\s+details = \"([^\"\n]*)",
        "the connection to the job service or to a worker broke: {0}",
        f"see their logs for the reason, start them again if they are gone, and {AGAIN}",
    ),
    (
        r"java\.net\.ConnectException: ([^\n]*)",
        "the engine cannot reach a worker or a worker pool: {0}",
        f"start the pool, or correct --environment_config, and {AGAIN}",
    ),
    (
        r"StatusRuntimeException: CANCELLED: client cancelled|RuntimeError: Channel closed prematurely",
        "a worker process died in the middle of its work",
        f"{AGAIN}; if the machine ran out of memory, use fewer workers",
    ),
)


class Reported(Exception):
    """PrepError encoded as text, for runners that pass on only text."""

    @classmethod
    def of(cls, error: PrepError) -> Reported:
        """Encode an error as text that `from_text` finds within any other text."""
        facts = {"kind": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
        return cls(_ERROR_PREFIX + json.dumps(facts))


def from_text(text: str) -> PrepError:
    """Decode the error from a runner's message about a failed Beam job."""
    rest = text.partition(_ERROR_PREFIX)[2]
    with contextlib.suppress(json.JSONDecodeError):  # a runner may cut long messages, or know none of our errors
        facts, _ = json.JSONDecoder().raw_decode(rest)
        kind = getattr(errors, facts["kind"], None)
        # An error whose class is defined elsewhere arrives as a PrepError.
        known = kind if isinstance(kind, type) and issubclass(kind, PrepError) else PrepError
        return known(facts["cause"], remedy=facts["remedy"])
    for pattern, cause, remedy in _KNOWN:
        if found := re.search(pattern, text):
            return PrepError(cause.format(*found.groups()), remedy=remedy)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason was given")
    return PrepError(
        f"the job failed: {last}", remedy=f"look into the runner's log, or add --verbose; when it is fixed, {AGAIN}"
    )


class Run(Shared):
    """State of a Beam job in this process: the first error of its work here, and counters for the launcher.

    After an error in the launcher's process no further work begins. A runner's processes remember no error, since a
    failed shard may be tried again there.
    """

    def __init__(self, *, progress: Progress | None = None) -> None:
        super().__init__()
        self.progress = progress or Progress()
        self.error: BaseException | None = None
        self._is_watched = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch a job in the launcher. Raises: the first error of a worker in this process, in place of any other."""
        self._is_watched = True
        try:
            yield
        except KeyboardInterrupt as interrupt:
            self.error = interrupt  # makes a thread that is still at work end its processes
            raise
        except Exception as error:
            if self.error is not None:
                raise self.error from error
            raise
        if self.error is not None:
            raise self.error

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """Return the result of `work`; in the launcher's process, None for an error and for all work after it.

        The error is kept for `watched`, since Beam prints a traceback for every error that reaches it.
        Raises: Reported in another process, in place of a PrepError.
        """
        if self.error is not None:
            return None
        try:
            return work()
        except Exception as error:
            if self._is_watched:
                self.error = self.error or error  # another thread may have failed meanwhile
                return None
            if isinstance(error, PrepError):
                # The runner's text contains the traceback with all causes.
                raise Reported.of(error) from cause_without_secrets(error)
            raise
