"""Rendering of conversations by a tokenizer's chat template, in worker processes.

A worker that makes shards renders by itself. Any other process starts children for it (see `process.workers`), one for
each thread that renders at the same time: Jinja holds the GIL, and a child can be killed whatever a template does.
"""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.process import workers
from pipelines.prepare.process.workers import WorkerDiedError
from pipelines.prepare.tokenize.chat import renderer
from pipelines.prepare.tokenize.chat.conversation import ANSWER, DATE_UNKNOWN, INVALID, OVER_LIMIT, QUESTION
from pipelines.prepare.tokenize.chat.rendering import Settings
from pipelines.prepare.tokenize.engines import utf8_of
from tfrecord_io.errors import TokenizerError


@dataclasses.dataclass(frozen=True)
class Texts:
    """N rendered texts, and their byte spans to learn.

    `strings`: large strings over `data`, uint8 [B]; text i is data[edges[i]:edges[i + 1]], with edges from 0 to B.
    `spans`: int64 [S, 2], as data[start:stop]; in order and disjoint, each within one text.
    """

    strings: pa.Array
    data: np.ndarray
    edges: np.ndarray
    spans: np.ndarray

    @classmethod
    def of(cls, strings: pa.Array, learned: pa.Array) -> Texts:
        """Build `Texts` from large strings that begin at their buffer's first byte.

        `learned`: the byte spans of each text to learn, [start, stop, start, stop, …].
        """
        data, edges = utf8_of(strings)
        places = learned.flatten().to_numpy() + np.repeat(edges[:-1], np.diff(learned.offsets.to_numpy()))
        return cls(strings, data[: edges[-1]], edges, places.reshape(-1, 2))

    def learned_letters(self, index: int) -> np.ndarray:
        """Return the loss mask of one text's characters, bool."""
        start, stop = self.edges[index : index + 2]
        places = np.arange(start, stop)[(self.data[start:stop] & 0xC0) != 0x80]
        return np.asarray(np.searchsorted(self.spans.ravel(), places, side="right") % 2 == 1)


class ChatRenderer:
    """Thread-safe renderer of batches of conversations."""

    def __init__(self, settings: Settings) -> None:
        self._cpu_seconds = settings.cpu_seconds
        self._settings = json.dumps(dataclasses.asdict(settings), default=str)

    def render(self, columns: Mapping[Any, pa.Array]) -> tuple[Texts, np.ndarray, dict[int, str]]:
        """Render conversations: lists of `messages`, and perhaps `tools` and `options` for each.

        Returns: N texts, empty for unusable rows; the reasons, object [N], '' for usable rows; details by row.
        Raises: TokenizerError if the template can render no conversation at all.
        """
        batch = self._rendered(pa.RecordBatch.from_pydict(dict(columns)))
        reasons = np.array(batch["reason"].to_pylist(), dtype=object)
        details = {row: batch["detail"][row].as_py() for row in np.flatnonzero(reasons != "").tolist()}
        for row, detail in details.items():
            if reasons[row] == INVALID:
                raise TokenizerError(
                    f"the chat template cannot be compiled: {detail}",
                    remedy="choose another tokenizer, or mend the template in a copy of this one",
                )
            if reasons[row] == DATE_UNKNOWN:
                raise TokenizerError(
                    "the chat template writes today's date, so that rows made tomorrow would differ from today's",
                    remedy="give the date that all rows are to say, such as --chat-date 2024-07-26",
                )
        return Texts.of(batch["text"].view(pa.large_string()), batch["learned"]), reasons, details

    def _rendered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a `renderer.RENDERED` batch. If a batch kills its process, its rows are rendered one by one."""
        try:
            return renderer.batch_of(workers.call(renderer.render, self._settings, renderer.message_of(batch)))
        except (WorkerDiedError, MemoryError) as error:
            if batch.num_rows == 1:
                row = {"text": b"", "learned": [], "reason": OVER_LIMIT, "detail": self._detail(error)}
                return pa.RecordBatch.from_pylist([row], renderer.RENDERED)
        parts = [self._rendered(batch.slice(row, 1)) for row in range(batch.num_rows)]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]

    def _detail(self, error: WorkerDiedError | MemoryError) -> str:
        if isinstance(error, MemoryError):
            return renderer.TOO_MUCH_MEMORY
        if error.exit_code == -signal.SIGPROF:
            return f"the chat template takes more than {self._cpu_seconds:g} seconds of a core"
        return f"the process that renders by the chat template {error.how}"


def open_template(tokenizer: Any, *, date: str | None = None, name: str | None = None) -> ChatRenderer:
    """Open the tokenizer's chat template: the one called `name`, or the one that `transformers` uses by default.

    `date`: ISO, for a template that asks for today's.
    Raises: TokenizerError if there is none (with that name), it writes a date and none is given, it exceeds the limits,
        or it does not tell which part of a conversation is the assistant's.
    """
    _require_named(tokenizer, name=name)
    settings = Settings(
        source=str(tokenizer.get_chat_template(name, None)),
        tools_source=str(tokenizer.get_chat_template(name, [])),
        variables=dict(tokenizer.special_tokens_map),
        added_tokens=sorted(map(str, tokenizer.get_added_vocab())),
        date=date,
    )
    template = ChatRenderer(settings)
    texts, (reason,), details = template.render({"messages": pa.array([[QUESTION, ANSWER]])})
    detail = details.get(0, "")
    if reason == OVER_LIMIT:
        raise TokenizerError(
            f"the chat template takes more for a question and its answer than a row may: {detail}",
            remedy="do not use this tokenizer, or mend the template in a copy of it",
        )
    is_unmarked = not reason and not len(texts.spans)
    if is_unmarked or reason == "template_prefix":
        why = "none of its text is within {% generation %} markers" if is_unmarked else detail
        raise TokenizerError(
            f"the chat template does not tell which part of a conversation is the assistant's: {why}",
            remedy="in a copy of the tokenizer, put {% generation %} and {% endgeneration %} around it in the template",
        )
    # Any other reason: the template does not take a question and an answer, and the rows will show what it takes.
    return template


def _require_named(tokenizer: Any, *, name: str | None) -> None:
    found = tokenizer.chat_template
    if not found:
        raise TokenizerError(
            f"--layout chat needs a chat template, but this tokenizer, a {type(tokenizer).__name__}, has none",
            remedy="add one with --chat-template FILE, or choose the tokenizer of a chat model",
        )
    names = sorted(found) if isinstance(found, dict) else []
    if name is not None and name not in names:
        raise TokenizerError(
            f"--chat-template {name!r}, but the tokenizer's templates are {', '.join(names) or 'a single one'}",
            remedy="give the name of one of them, or a file" if names else "give a file, or leave --chat-template out",
        )
    if name is None and names and "default" not in names:
        raise TokenizerError(
            f"the tokenizer has several chat templates, {', '.join(names)}, and none of them is called default",
            remedy=f"choose one, such as --chat-template {names[0]}",
        )
