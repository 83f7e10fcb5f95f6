"""Processes that render conversations by a tokenizer's chat template.

    threads      encode ◄─┐  encode ◄─┐  encode ◄─┐      each waits for a process of its own, without the interpreter
    processes   renderer ─┘ renderer ─┘ renderer ─┘      as many as there are threads that render at a time

Jinja holds the interpreter. A build of a million conversations of 30 words takes 12 s of processor time without
rendering, and holds the interpreter for 3.6 s of them: 16 cores make it in little more than that. Rendering takes 14 s
more, which in this process would hold the interpreter, too. Besides, templates come from strangers, and a process can
be ended whatever its template does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.chat import protocol
from pipelines.prepare.tokenize.chat.messages import Conversations
from pipelines.prepare.tokenize.chat.texts import Texts
from tfrecord_io.errors import TokenizerError

__all__ = ["Rendered", "RendererPool"]

# With -I, neither the working folder nor the environment decides what is imported. Not `multiprocessing`: it would run
# the caller's program again, and not at all in the daemonic processes of some runners.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pipelines.prepare.tokenize.chat import renderer; renderer.main()"
)
# All of the environment that it gets: no credentials, and no memory or threads that it has no use for.
_KEPT = ("LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
_SET = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """N conversations as texts, empty where one cannot be used; the reasons (object [N]), '' where it can; and details
    by row where there is a reason.
    """

    texts: Texts
    reasons: np.ndarray
    details: dict[int, str]


class RendererPool:
    """Renders batches of conversations for any number of threads. Its processes start when needed, and end with it."""

    def __init__(self, settings: protocol.Settings) -> None:
        self._settings = settings
        self._idle: list[_Renderer] = []
        self.close = weakref.finalize(self, _close_all, self._idle)

    def render(self, conversations: Conversations) -> Rendered:
        """Render each conversation.

        Raises: TokenizerError if the template can serve none, or no process can be started.
        """
        batch = self._rendered(conversations.batch)
        reasons = np.array(batch["reason"].to_pylist(), dtype=object)
        details = {row: batch["detail"][row].as_py() for row in np.flatnonzero(reasons != "").tolist()}
        for row, detail in details.items():
            _require_template(reasons[row], detail)
        texts = Texts.of(batch["text"].view(pa.large_string()), batch["learned"])
        return Rendered(texts=texts, reasons=reasons, details=details)

    def probe(self, conversations: Conversations) -> Rendered:
        """Render as `render` does, and once more in another process, whose hashes and addresses differ. It is the one
        that a second thread needs; alone it takes 0.3 s of a core.

        Raises: TokenizerError, also if the texts differ.
        """
        first = self.render(conversations)
        before = [self._idle.pop() for _ in self._idle[:]]
        again = self.render(conversations)
        self._idle += before
        if not first.texts.strings.equals(again.texts.strings):
            _require_template(protocol.DIFFERS, "two processes have made two texts of one conversation")
        return first

    def _rendered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """As `protocol.RENDERED`. A batch that ends its process is taken row by row, to tell which row does."""
        try:
            return self._asked(batch)
        except _Ended as ended:
            if batch.num_rows == 1:
                row = {"text": b"", "learned": [], "reason": protocol.OVER_LIMIT, "detail": self._detail(ended)}
                return pa.RecordBatch.from_pylist([row], protocol.RENDERED)
        parts = [self._rendered(batch.slice(row, 1)) for row in range(batch.num_rows)]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]

    def _asked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            renderer = self._idle.pop()
        except IndexError:
            renderer = _Renderer(self._settings)
        try:
            reply = renderer.ask(protocol.message_of(batch))
        except BaseException:  # also an interrupt: what it would answer next is not known
            renderer.close()
            raise
        self._idle.append(renderer)
        return protocol.batch_of(reply)

    def _detail(self, ended: _Ended) -> str:
        if ended.status == -signal.SIGPROF:
            return f"the chat template takes more than {self._settings.limits.cpu_seconds:g} seconds of a core"
        if ended.status == protocol.OUT_OF_MEMORY:
            return "the chat template takes more memory than it may"
        return f"the chat template ends the process that renders it, with status {ended.status}"


class _Ended(Exception):
    """A process ended before it answered. `status` is minus a signal's number, or what it exited with."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Renderer:
    """One process. Raises: TokenizerError if it cannot be started."""

    def __init__(self, settings: protocol.Settings) -> None:
        command = [sys.executable, "-I", "-X", "utf8", "-c", _PROGRAM, json.dumps(sys.path)]
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | _SET
        try:
            # In a session of its own: Ctrl-C is for us.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
        except OSError as error:
            raise _not_started(str(error)) from error
        try:
            self.ask(settings.to_json())
        except _Ended as ended:
            self.close()
            raise _not_started(f"it ended with status {ended.status}") from ended

    def ask(self, message: bytes | pa.Buffer) -> bytes:
        """The answer to a message. Raises: _Ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            protocol.send(self._process.stdin, message)
            reply = protocol.receive(self._process.stdout)
        except BrokenPipeError:
            reply = None
        if reply is None:
            raise _Ended(self._process.wait())
        return reply

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def _close_all(renderers: list[_Renderer]) -> None:
    while renderers:
        renderers.pop().close()


def _not_started(why: str) -> TokenizerError:
    return TokenizerError(
        f"no process can be started to render conversations by the chat template: {why}",
        remedy="look for its own message before this one; it takes about 60 MB of memory, and one process a core",
    )


def _require_template(reason: str, detail: str) -> None:
    if reason == protocol.INVALID:
        raise TokenizerError(
            f"the chat template cannot be compiled: {detail}",
            remedy="choose another tokenizer, or mend the template in a copy of this one",
        )
    if reason == protocol.DIFFERS:
        raise TokenizerError(
            f"the chat template gives the same conversation another text each time: {detail}",
            remedy="choose another tokenizer, or mend the template in a copy of this one",
        )
    if reason == protocol.DATE_UNKNOWN:
        raise TokenizerError(
            "the chat template writes today's date, so that rows made tomorrow would differ from today's",
            remedy="give the date that all rows are to say, such as --chat-date 2024-07-26",
        )
