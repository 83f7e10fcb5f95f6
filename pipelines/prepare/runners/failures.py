"""Transport of errors from the workers of a Beam job to the launcher.

    where the task runs     result of a failure
    a Beam runner           the runner's text, which contains the error as JSON
    a process that died     Beam's message about a broken connection

Any error of a Beam job becomes a PrepError. Its traceback is in the worker's output or the runner's log.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

from tfrecord_io import errors
from tfrecord_io.errors import PrepError
from tfrecord_io.shown import cause_without_secrets

AGAIN = "run the same command again; finished shards are kept"

_ERROR_PREFIX = "prep-tfrecords error "

# Runners' messages about failures in foreign code: pattern, cause, remedy.
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
    """PrepError encoded as text, because runners pass on only text."""

    @classmethod
    def of(cls, error: PrepError) -> Reported:
        """Encode an error as text."""
        facts = {"kind": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
        return cls(_ERROR_PREFIX + json.dumps(facts))


def from_text(text: str) -> PrepError:
    """Decode the error from a runner's message."""
    rest = text.partition(_ERROR_PREFIX)[2]
    with contextlib.suppress(json.JSONDecodeError):  # runners may cut long messages
        facts, _ = json.JSONDecoder().raw_decode(rest)
        kind = getattr(errors, facts["kind"], None)
        # Classes defined elsewhere arrive as PrepError.
        known = kind if isinstance(kind, type) and issubclass(kind, PrepError) else PrepError
        return known(facts["cause"], remedy=facts["remedy"])
    for pattern, cause, remedy in _KNOWN:
        if found := re.search(pattern, text):
            return PrepError(cause.format(*found.groups()), remedy=remedy)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason was given")
    return PrepError(
        f"the job failed: {last}", remedy=f"look into the runner's log, or add --verbose; when it is fixed, {AGAIN}"
    )


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Raise Reported in place of a PrepError."""
    try:
        yield
    except PrepError as error:
        raise Reported.of(error) from cause_without_secrets(error)
