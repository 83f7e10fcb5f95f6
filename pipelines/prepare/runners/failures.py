"""Pass errors from the workers of a Beam job to the launcher.

A runner reports failures as text: a task's PrepError as JSON, or, if a worker process died, a message about a broken
connection. The launcher turns both into a PrepError.
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

# Known failures: a pattern in the runner's message, our cause and remedy.
_KNOWN = (
    (
        r"ModuleNotFoundError: No module named '([^']+)'",
        "a worker has no module {0}",
        "install this machine's version of prep-tfrecords on the workers",
    ),
    (
        r"already (?:an )?active job named ([\w-]+)",
        "a Dataflow job named {0} is running: another launcher has started the same build",
        "wait until it ends, or end it with `gcloud dataflow jobs cancel`; then run the same command again",
    ),
    (
        r"Dataflow pipeline failed\. State: (CANCELLED|CANCELLING|DRAINED|DRAINING|STOPPED|UPDATED)",
        "the Dataflow job ended in the state {0}, expected DONE",
        AGAIN,
    ),
    (
        r"Dataflow pipeline failed\. State: (\w+), Error:\s+None",
        "the Dataflow job ended in the state {0}, and no reason was given",
        f"look for the reason on the job's page; when it is fixed, {AGAIN}",
    ),
    (
        r"StatusCode\.DEADLINE_EXCEEDED()",
        "the job did not end within --job_server_timeout",
        "leave --job_server_timeout out, or give a larger one; the job itself may still be running",
    ),
    (
        r"StatusCode\.\w+\s+details = \"([^\"\n]*)",
        "the connection to the job service or to a worker broke: {0}",
        f"look for the reason in the logs of the job service and the workers, restart them if they ended, and {AGAIN}",
    ),
    (
        r"java\.net\.ConnectException: ([^\n]*)",
        "the runner cannot reach a worker or a worker pool: {0}",
        f"start the worker pool, or correct --environment_config, and {AGAIN}",
    ),
    (
        r"StatusRuntimeException: CANCELLED: client cancelled|RuntimeError: Channel closed prematurely",
        "a worker process died during its work",
        f"{AGAIN}; if the machine ran out of memory, use fewer workers",
    ),
)


class Reported(Exception):
    """A task's PrepError as text, so that any runner passes it on."""

    @classmethod
    def of(cls, error: PrepError) -> Reported:
        facts = {"kind": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
        return cls(_ERROR_PREFIX + json.dumps(facts))


def from_text(text: str) -> PrepError:
    """Return the PrepError that a runner's message `text` contains, or one that explains the message."""
    rest = text.partition(_ERROR_PREFIX)[2]
    with contextlib.suppress(json.JSONDecodeError):  # runners may cut long messages
        facts, _ = json.JSONDecoder().raw_decode(rest)
        kind = getattr(errors, facts["kind"], None)
        # Classes outside `tfrecord_io.errors` arrive as PrepError.
        known = kind if isinstance(kind, type) and issubclass(kind, PrepError) else PrepError
        return known(facts["cause"], remedy=facts["remedy"])
    for pattern, cause, remedy in _KNOWN:
        if match := re.search(pattern, text):
            return PrepError(cause.format(*match.groups()), remedy=remedy)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason was given")
    remedy = f"look for the reason in the runner's log, or add --verbose; when it is fixed, {AGAIN}"
    return PrepError(f"the job failed: {last}", remedy=remedy)


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Within the context, turn any PrepError into `Reported`."""
    try:
        yield
    except PrepError as error:
        raise Reported.of(error) from cause_without_secrets(error)
