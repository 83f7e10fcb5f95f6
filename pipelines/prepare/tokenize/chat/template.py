"""Render conversations with a tokenizer's chat template, in worker processes.

Worker processes that make shards render their conversations. Any other process starts a child per rendering thread,
because Jinja holds Python's interpreter lock, and because a child can be killed.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.layout_config import Learn
from pipelines.prepare.runners import here
from pipelines.prepare.runners.child import WorkerDiedError
from pipelines.prepare.tokenize.chat import builtin_templates, renderer
from pipelines.prepare.tokenize.chat.conversation import ANSWER, DATE_UNKNOWN, INVALID, OVER_LIMIT, QUESTION, calling
from pipelines.prepare.tokenize.chat.program import Settings
from pipelines.prepare.tokenize.engines import HFTokenizer, utf8_of
from tfrecord_io.errors import TokenizerError

REWRITES = (
    "this chat template writes an answer differently once the conversation continues, for example without its thought; "
    "--learn all (the default) learns answers as in the whole conversation, --learn each as the model must write them"
)

_MARKERS = re.compile(r"{%[-+]?\s*generation\b")
_PAIR = {"messages": QUESTION, "chosen": ANSWER, "rejected": {**ANSWER, "content": "this one"}}


@dataclasses.dataclass(frozen=True)
class Texts:
    """N rendered texts with their learned and skipped byte spans. A token that overlaps a skipped span is not learned.

    `strings`: the texts as Arrow large strings. `data` uint8 [B], `edges` int64 [N + 1]: text i is
    data[edges[i]:edges[i + 1]]. `spans`, `skipped` int64 [S, 2]: learned and skipped spans in `data`, in order and
    disjoint, each within one text.
    """

    strings: pa.Array
    data: np.ndarray
    edges: np.ndarray
    spans: np.ndarray
    skipped: np.ndarray

    @classmethod
    def of(cls, strings: pa.Array, learned: pa.Array, skipped: pa.Array | None = None) -> Texts:
        """Build from a large_string array whose buffer has no unused bytes at its start.

        `learned`, `skipped`: for each text, a list of byte positions [start, stop, start, stop, …] in the text.
        """
        data, edges = utf8_of(strings)

        def places(spans: pa.Array) -> np.ndarray:
            begins = np.repeat(edges[:-1], np.diff(spans.offsets.to_numpy()))
            return np.asarray(spans.flatten().to_numpy() + begins).reshape(-1, 2)

        none = np.zeros((0, 2), np.int64)
        return cls(strings, data[: edges[-1]], edges, places(learned), none if skipped is None else places(skipped))

    def learned_letters(self, index: int) -> np.ndarray:
        """Return whether each of the C characters of the text at `index` is learned, bool [C]."""
        start, stop = self.edges[index : index + 2]
        places = np.arange(start, stop)[(self.data[start:stop] & 0xC0) != 0x80]
        return np.asarray(np.searchsorted(self.spans.ravel(), places, side="right") % 2 == 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """A batch of N rows, rendered as T texts: one or several per row. A rejected row has one empty text.

    `owners` int64 [T]: the row of each text, ascending. `num_messages` int64 [T]: the messages in each text. `reasons`
    object [N]: why a row is rejected, or ''. `details`: explanations of the reasons, by row.
    """

    texts: Texts
    owners: np.ndarray
    num_messages: np.ndarray
    reasons: np.ndarray
    details: dict[int, str]


class ChatRenderer:
    """Renders batches of conversations; several threads may use it. `notes`: remarks for the user, before the build."""

    notes: tuple[str, ...] = ()

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._json = json.dumps(dataclasses.asdict(settings), default=str)

    def render(self, columns: Mapping[Any, pa.Array]) -> Rendered:
        """Render a batch: the column `messages`, with optional columns `tools` and `options`.

        With columns `chosen` and `rejected`, each row has three texts: the prompt followed by the generation prompt, by
        the chosen answer, and by the rejected answer.
        Raises: TokenizerError if the template cannot be compiled, or writes a date and none was given.
        """
        batch = self._rendered(pa.RecordBatch.from_pydict(dict(columns)))
        owners, reason_of_text = batch["row"].to_numpy(), np.array(batch["reason"].to_pylist(), dtype=object)
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        reasons = reason_of_text[firsts]
        details = {int(owners[at]): batch["detail"][int(at)].as_py() for at in np.flatnonzero(reason_of_text != "")}
        self._require_usable(reasons, details)
        return Rendered(
            texts=Texts.of(batch["text"].view(pa.large_string()), batch["learned"], batch["skipped"]),
            owners=owners,
            num_messages=batch["num_messages"].to_numpy(),
            reasons=reasons,
            details=details,
        )

    def learning(self, learn: Learn) -> ChatRenderer:
        return ChatRenderer(dataclasses.replace(self.settings, learn=learn))

    @staticmethod
    def _require_usable(reasons: np.ndarray, details: Mapping[int, str]) -> None:
        for row, detail in details.items():
            if reasons[row] == INVALID:
                raise TokenizerError(
                    f"the chat template cannot be compiled: {detail}",
                    remedy="correct a copy of the template, and give its file as --chat-template",
                )
            if reasons[row] == DATE_UNKNOWN:
                raise TokenizerError(
                    "the chat template writes today's date, so rows made tomorrow would differ from rows made today",
                    remedy="give a date for all rows, such as --chat-date 2024-07-26",
                )

    def _rendered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
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
            return f"the chat template takes more than {self.settings.cpu_seconds:g} seconds of processor time"
        return f"the process that renders the chat template {error.how}"


def open_template(
    tokenizer: HFTokenizer,
    *,
    date: str | None = None,
    name: str | None = None,
    options: Sequence[str] = (),
    finds_answers: bool = True,
    **more: Any,
) -> ChatRenderer:
    """Open the tokenizer's chat template `name`, by default the one that `transformers` uses.

    `date`, `more`: fields of `Settings`. `options`: template variables, as KEY=VALUE. `finds_answers`: whether the
    assistant's text must be found, for a loss mask.
    Raises: TokenizerError if the template does not exist, needs a date, exceeds the limits or writes answers that
        cannot be found.
    """
    _require_named(tokenizer, name=name)
    key = name if isinstance(tokenizer.chat_template, dict) else None  # a single template has no name
    variables = {variable: _value(text) for variable, _, text in (option.partition("=") for option in options)}
    settings = Settings(
        source=str(tokenizer.get_chat_template(key, None)),
        tools_source=str(tokenizer.get_chat_template(key, [])),
        variables={**tokenizer.special_tokens_map, **variables},
        added_tokens=sorted(map(str, tokenizer.get_added_vocab())),
        date=date,
        joins_line_breaks=len(tokenizer.encode("\n\n", add_special_tokens=False)) == 1,
        **more,
    )
    renderer = ChatRenderer(settings)
    if finds_answers:
        for_trials = renderer.learning("all")
        of_parts = itertools.chain.from_iterable(_notes_on_part(for_trials, part) for part in settings.learn_not)
        renderer.notes = (*_notes_of_trial(for_trials), *of_parts)
    else:
        renderer.render({name: pa.array([[message]]) for name, message in _PAIR.items()})
    if settings.whole_turns and _MARKERS.search(settings.source + settings.tools_source):
        renderer.notes += (
            "--learn-whole-turns has no effect: the chat template marks the text to learn with {% generation %}",
        )
    renderer.notes += builtin_templates.notes_on(tokenizer, name)
    return renderer


def _notes_on_part(renderer: ChatRenderer, part: str) -> Iterator[str]:
    thoughts = {"reasoning_content": "so"}, {"content": f"<think>\nso\n</think>\n\n{ANSWER['content']}"}
    trials: dict[str, list[Any]] = {
        "thoughts": [([QUESTION, {**ANSWER, **thought}], None) for thought in thoughts],
        "tool_calls": [calling()],
    }
    is_found, details = list[bool](), list[str]()
    for messages, tools in trials[part]:
        columns = {"messages": pa.array([messages]), **({"tools": pa.array([tools])} if tools else {})}
        rendered = renderer.render(columns)
        is_found.append(len(rendered.texts.skipped) > 0)
        details += rendered.details.values()
    if not is_found[0]:
        name = {"thoughts": "the field reasoning_content"}.get(part, part)
        how = f"refuses {name} of answers: {details[0]}" if details else f"does not write {name} of answers"
        also = ", but thoughts between <think> and </think> in contents are found" if any(is_found) else ""
        yield f"--learn-not {part}: this chat template {how}{also}"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _notes_of_trial(renderer: ChatRenderer) -> tuple[str, ...]:
    thought = {**ANSWER, "content": f"<think>\nso\n</think>\n\n{ANSWER['content']}", "reasoning_content": "so"}
    trials = [[QUESTION, ANSWER], [QUESTION, ANSWER] * 2, [QUESTION, thought], [QUESTION, thought] * 2]
    rendered = renderer.render({"messages": pa.array(trials)})
    details = {rendered.reasons[row]: detail for row, detail in reversed(rendered.details.items())}
    if OVER_LIMIT in details:
        raise TokenizerError(
            f"the chat template exceeds a limit when it writes a question and its answer: {details[OVER_LIMIT]}",
            remedy="correct a copy of the template, and give its file as --chat-template",
        )
    if "template_rejected" in (rendered.reasons[0], rendered.reasons[1]):
        if rendered.reasons[0]:  # the template may accept the form of the rows
            return ()
        return (f"the chat template refuses a second question and answer: {rendered.details[1]}",)
    if not len(rendered.texts.spans) or "template_prefix" in details:
        why = details.get("template_prefix", "no text is between {% generation %} markers")
        raise TokenizerError(
            f"the assistant's text cannot be found in conversations with this chat template: {why}",
            remedy="in a copy of the template, put {% generation %} and {% endgeneration %} around the assistant's "
            "text, and give the file as --chat-template",
        )
    return tuple(_notes(rendered.texts))


def _notes(texts: Texts) -> Iterator[str]:
    single, double, thought, thoughts = texts.strings.to_pylist()
    content = ANSWER["content"]
    if content not in double:
        yield (
            "the chat template ignores contents that are texts; give lists of parts, such as "
            '[{"type": "text", "text": "…"}]'
        )
    elif not double.startswith(single) or not thoughts.startswith(thought):
        yield REWRITES
    learned = "".join(letter if keep else "\0" for letter, keep in zip(double, texts.learned_letters(1), strict=True))
    ends = [part.rstrip("\0").partition("\0")[0] for part in learned.split(content)[1:]]
    if ends and not ends[0]:
        yield (
            "the end of an answer is never learned, so a model would not learn to stop; in a copy of the template, put "
            "the token that ends an answer before {% endgeneration %}, and give the file as --chat-template"
        )
    elif ends and not ends[-1]:
        yield (
            "nothing ends the last answer of a conversation in this chat template, so its end is not learned; other "
            "answers end with the beginning of the next turn, which is learned"
        )


def _require_named(tokenizer: HFTokenizer, *, name: str | None) -> None:
    templates = tokenizer.chat_template
    names = sorted(templates) if isinstance(templates, dict) else ["default"] if templates else []
    if name is not None and name not in names:
        raise TokenizerError(
            f"--chat-template {name!r} is neither a file nor the name of a template, expected one of "
            f"{', '.join(dict.fromkeys([*names, *builtin_templates.TEXTS]))}",
            remedy="give one of these names, or the path of a file",
        )
    if not templates:
        raise TokenizerError(
            "conversations need a chat template, but this tokenizer has none",
            remedy="add one with --chat-template chatml, or --chat-template FILE; or choose a chat model's tokenizer",
        )
    if name is None and names and "default" not in names:
        raise TokenizerError(
            f"the tokenizer has several chat templates, {', '.join(names)}, and none of them is called default",
            remedy=f"choose one, such as --chat-template {names[0]}",
        )
