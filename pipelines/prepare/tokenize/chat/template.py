"""Render conversations with a tokenizer's chat template, in worker processes.

A worker that makes shards renders in its own process. Others start children (see `runners.here`), one per rendering
thread, because Jinja holds the GIL and a child can be killed.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.layout_config import Learn
from pipelines.prepare.runners import here
from pipelines.prepare.runners.child import WorkerDiedError
from pipelines.prepare.tokenize.chat import builtin_templates, renderer
from pipelines.prepare.tokenize.chat.conversation import (
    ANSWER,
    DATE_UNKNOWN,
    INVALID,
    OVER_LIMIT,
    QUESTION,
    calling,
)
from pipelines.prepare.tokenize.chat.program import Settings
from pipelines.prepare.tokenize.engines import HFTokenizer, utf8_of
from tfrecord_io.errors import TokenizerError

REWRITES = (
    "this chat template writes an answer differently once the conversation continues, for example without its thought; "
    "--learn all, the default, learns every answer as the whole conversation shows it, and --learn each learns it as "
    "a model has to give it, in a row of its own"
)

_PAIR = {"messages": QUESTION, "chosen": ANSWER, "rejected": {**ANSWER, "content": "this one"}}


@dataclasses.dataclass(frozen=True)
class Texts:
    """N rendered texts, their learned byte spans, and their skipped ones: no token that overlaps one is learned.

    `strings`: large strings over `data`, uint8 [B]; text i is data[edges[i]:edges[i + 1]], with edges from 0 to B.
    `spans`, `skipped`: int64 [S, 2], as data[start:stop]; in order and disjoint, each within one text.
    """

    strings: pa.Array
    data: np.ndarray
    edges: np.ndarray
    spans: np.ndarray
    skipped: np.ndarray

    @classmethod
    def of(cls, strings: pa.Array, learned: pa.Array, skipped: pa.Array | None = None) -> Texts:
        """Build `Texts` from large strings at their buffer's first byte. Spans of a text are [start, stop, …]."""
        data, edges = utf8_of(strings)

        def places(spans: pa.Array) -> np.ndarray:
            begins = np.repeat(edges[:-1], np.diff(spans.offsets.to_numpy()))
            return np.asarray(spans.flatten().to_numpy() + begins).reshape(-1, 2)

        none = np.zeros((0, 2), np.int64)
        return cls(strings, data[: edges[-1]], edges, places(learned), none if skipped is None else places(skipped))

    def learned_letters(self, index: int) -> np.ndarray:
        """Return the loss mask of one text's characters, bool."""
        start, stop = self.edges[index : index + 2]
        places = np.arange(start, stop)[(self.data[start:stop] & 0xC0) != 0x80]
        return np.asarray(np.searchsorted(self.spans.ravel(), places, side="right") % 2 == 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """Rendered batch of N conversations: T `texts`, one per conversation or one per answer.

    `owners`, `num_messages` int64 [T]: each text's row, ascending, and number of messages. Unusable rows have one empty
    text. `reasons` object [N], '' for usable rows; `details` by row.
    """

    texts: Texts
    owners: np.ndarray
    num_messages: np.ndarray
    reasons: np.ndarray
    details: dict[int, str]


class ChatRenderer:
    """Thread-safe renderer of batches. `notes`: lines for users about the template."""

    notes: tuple[str, ...] = ()

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._json = json.dumps(dataclasses.asdict(settings), default=str)

    def render(self, columns: Mapping[Any, pa.Array]) -> Rendered:
        """Render lists of `messages`, optionally with `tools` and `options` per row.

        With `chosen` and `rejected`, a row is a preference pair; usable ones have three texts (`RENDERED`).
        Raises: TokenizerError if the template can render no conversation.
        """
        batch = self._rendered(pa.RecordBatch.from_pydict(dict(columns)))
        owners, found = batch["row"].to_numpy(), np.array(batch["reason"].to_pylist(), dtype=object)
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        reasons = found[firsts]
        details = {int(owners[at]): batch["detail"][int(at)].as_py() for at in np.flatnonzero(found != "")}
        self._require_usable(reasons, details)
        return Rendered(
            texts=Texts.of(batch["text"].view(pa.large_string()), batch["learned"], batch["skipped"]),
            owners=owners,
            num_messages=batch["num_messages"].to_numpy(),
            reasons=reasons,
            details=details,
        )

    def learning(self, learn: Learn) -> ChatRenderer:
        """Return a renderer with the same template that learns other answers."""
        return ChatRenderer(dataclasses.replace(self.settings, learn=learn))

    @staticmethod
    def _require_usable(reasons: np.ndarray, details: Mapping[int, str]) -> None:
        for row, detail in details.items():
            if reasons[row] == INVALID:
                raise TokenizerError(
                    f"the chat template cannot be compiled: {detail}",
                    remedy="choose another tokenizer, or repair the template in a copy of this one",
                )
            if reasons[row] == DATE_UNKNOWN:
                raise TokenizerError(
                    "the chat template writes today's date, so that rows made tomorrow would differ from today's",
                    remedy="give the date that all rows are to say, such as --chat-date 2024-07-26",
                )

    def _rendered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Render; if a batch kills its process, render its rows one by one."""
        try:
            return renderer.batch_of(here.call(renderer.render, self._json, renderer.message_of(batch)))
        except (WorkerDiedError, MemoryError) as error:
            if batch.num_rows == 1:
                empty = {"row": 0, "num_messages": 0, "text": b"", "learned": [], "skipped": []}
                row = {**empty, "reason": OVER_LIMIT, "detail": self._detail(error)}
                return pa.RecordBatch.from_pylist([row], renderer.RENDERED)
        parts = [self._rendered(batch.slice(row, 1)) for row in range(batch.num_rows)]
        rows = [
            part.set_column(0, "row", pa.array([row] * part.num_rows, pa.int64())) for row, part in enumerate(parts)
        ]
        return pa.Table.from_batches(rows).combine_chunks().to_batches()[0]

    def _detail(self, error: WorkerDiedError | MemoryError) -> str:
        if isinstance(error, MemoryError):
            return renderer.TOO_MUCH_MEMORY
        if error.exit_code == -signal.SIGPROF:
            return f"the chat template takes more than {self.settings.cpu_seconds:g} seconds of a core"
        return f"the process that renders by the chat template {error.how}"


def open_template(
    tokenizer: HFTokenizer,
    *,
    date: str | None = None,
    name: str | None = None,
    options: Sequence[str] = (),
    finds_answers: bool = True,
    **more: Any,
) -> ChatRenderer:
    """Open the tokenizer's chat template called `name`, by default the one that `transformers` uses.

    `date`: ISO, for a template that asks for today's. `options`: KEY=VALUE, template variables. `finds_answers`:
    whether answers' places are needed. `more`: other fields of `Settings`.
    Raises: TokenizerError if there is no such template, it needs a date, it exceeds the limits, or no answers are
        found.
    """
    _require_named(tokenizer, name=name)
    named = name if isinstance(tokenizer.chat_template, dict) else None  # a single template is the default
    given = {key: _value(text) for key, _, text in (option.partition("=") for option in options)}
    settings = Settings(
        source=str(tokenizer.get_chat_template(named, None)),
        tools_source=str(tokenizer.get_chat_template(named, [])),
        variables={**tokenizer.special_tokens_map, **given},
        added_tokens=sorted(map(str, tokenizer.get_added_vocab())),
        date=date,
        joins_line_breaks=len(tokenizer.encode("\n\n", add_special_tokens=False)) == 1,
        **more,
    )
    renderer = ChatRenderer(settings)
    if finds_answers:
        on_trial = renderer.learning("all")
        of_parts = itertools.chain.from_iterable(_notes_on_part(on_trial, part) for part in settings.learn_not)
        renderer.notes = (*_notes_of_trial(on_trial), *of_parts)
    else:
        renderer.render({name: pa.array([[each]]) for name, each in _PAIR.items()})
    renderer.notes += builtin_templates.notes_on(tokenizer, name)
    return renderer


def _notes_on_part(renderer: ChatRenderer, part: str) -> Iterator[str]:
    thoughts = {"reasoning_content": "so"}, {"content": f"<think>\nso\n</think>\n\n{ANSWER['content']}"}
    trials: dict[str, list[Any]] = {
        "thoughts": [([QUESTION, {**ANSWER, **each}], None) for each in thoughts],
        "tool_calls": [calling()],
    }
    found, details = list[bool](), list[str]()
    for messages, tools in trials[part]:
        columns = {"messages": pa.array([messages]), **({"tools": pa.array([tools])} if tools else {})}
        tried = renderer.render(columns)
        found.append(len(tried.texts.skipped) > 0)
        details += tried.details.values()
    if not found[0]:
        name = {"thoughts": "the field reasoning_content"}.get(part, part)
        how = f"refuses {name} of answers: {details[0]}" if details else f"does not write {name} of answers"
        also = ", but thoughts between <think> and </think> in contents are found" if any(found) else ""
        yield f"--learn-not {part}: this chat template {how}{also}"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _notes_of_trial(renderer: ChatRenderer) -> tuple[str, ...]:
    thought = {**ANSWER, "content": f"<think>\nso\n</think>\n\n{ANSWER['content']}", "reasoning_content": "so"}
    trials = [[QUESTION, ANSWER], [QUESTION, ANSWER] * 2, [QUESTION, thought], [QUESTION, thought] * 2]
    tried = renderer.render({"messages": pa.array(trials)})
    details = {tried.reasons[row]: detail for row, detail in reversed(tried.details.items())}
    if OVER_LIMIT in details:
        raise TokenizerError(
            f"the chat template takes more for a question and its answer than a row may: {details[OVER_LIMIT]}",
            remedy="do not use this tokenizer, or repair the template in a copy of it",
        )
    if "template_rejected" in (tried.reasons[0], tried.reasons[1]):
        if tried.reasons[0]:  # rows may have another form
            return ()
        return (f"the chat template refuses a second question and answer: {tried.details[1]}",)
    if not len(tried.texts.spans) or "template_prefix" in details:
        why = details.get("template_prefix", "none of its text is within {% generation %} markers")
        raise TokenizerError(
            f"the chat template does not tell which part of a conversation is the assistant's: {why}",
            remedy="in a copy of the tokenizer, put {% generation %} and {% endgeneration %} around it in the template",
        )
    return tuple(_notes(tried.texts))


def _notes(texts: Texts) -> Iterator[str]:
    one, two, thought, thoughts = texts.strings.to_pylist()
    said = ANSWER["content"]
    if said not in two:
        yield (
            "the chat template writes nothing of contents that are texts; give lists of parts, such as "
            '[{"type": "text", "text": "…"}]'
        )
    elif not two.startswith(one) or not thoughts.startswith(thought):
        yield REWRITES
    learned = "".join(letter if keep else "\0" for letter, keep in zip(two, texts.learned_letters(1), strict=True))
    ends = [part.rstrip("\0").partition("\0")[0] for part in learned.split(said)[1:]]
    if ends and not ends[0]:
        yield (
            "the end of an answer is never learned, so a model would not learn to stop; put the token that ends it "
            "before {% endgeneration %} in a copy of the template"
        )
    elif ends and not ends[-1]:
        yield (
            "nothing ends the last answer of a conversation in this chat template, so its end is not learned there; "
            "where another turn follows, the marker of that turn is"
        )


def _require_named(tokenizer: HFTokenizer, *, name: str | None) -> None:
    found = tokenizer.chat_template
    names = sorted(found) if isinstance(found, dict) else ["default"] if found else []
    if name is not None and name not in names:
        raise TokenizerError(
            f"--chat-template {name!r} is neither a file nor the name of a template; the tokenizer's templates are "
            f"{', '.join(names) or 'none'}, and {', '.join(builtin_templates.TEXTS)} is built in",
            remedy="give the name of one of them, or a file",
        )
    if not found:
        raise TokenizerError(
            "conversations need a chat template, but this tokenizer has none",
            remedy="add one with --chat-template chatml, or --chat-template FILE; or choose a chat model's tokenizer",
        )
    if name is None and names and "default" not in names:
        raise TokenizerError(
            f"the tokenizer has several chat templates, {', '.join(names)}, and none of them is called default",
            remedy=f"choose one, such as --chat-template {names[0]}",
        )
