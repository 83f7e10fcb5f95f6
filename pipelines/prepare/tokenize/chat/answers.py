"""Find the assistant's bytes in a rendered conversation.

{% generation %} markers in the template mark these bytes. Without markers, they are searched for in the answer's turn,
the text that the template's loop over messages writes for the answer.

    <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎a<|im_end|>⏎<|im_start|>user⏎…
    └──────────── turn ────────┘└──────────────── turn ───────────┘└─── turn ────
                                                      └ learned ─┘
                                └── generation prompt ┘

docs/format.md specifies where an answer ends. The turn must begin with the generation prompt, or, if the template
writes earlier answers differently, with `header` (see `Traits`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence

from jinja2 import nodes

from pipelines.prepare.tokenize.chat.conversation import (
    ANSWER,
    QUESTION,
    Conversation,
    Message,
    Refused,
    Rejected,
    in_parts,
    num_shared,
)
from pipelines.prepare.tokenize.chat.environment import Spans
from pipelines.prepare.tokenize.chat.program import Program, Rendering

_SENTINEL = "\ue000"
_OPENED_THOUGHT = re.compile(rb"<think>\s*$")
# For templates with a generation prompt that begins the thought.
_THOUGHT: Message = {"role": "assistant", "content": f"so\n</think>\n\n{ANSWER['content']}"}


@dataclasses.dataclass(frozen=True)
class Traits:
    """Facts about a chat template, from its renderings of trial conversations.

    `prompt`: the generation prompt; None if it depends on the conversation. `header`: the common beginning of the
    generation prompt and of all answers. `closings`: end-of-turn tokens, each with the white space after it. `is_open`:
    whether answers do not end with a token.
    """

    prompt: bytes | None
    header: bytes
    closings: tuple[bytes, ...]
    is_open: bool


class AnswerFinder:
    """Finds the assistant's answers in conversations that the chat template `program` rendered."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def spans(self, conversation: Conversation, rendering: Rendering, answers: Sequence[int]) -> Spans:
        """Return the byte spans to learn in the rendered conversation, sorted and disjoint.

        `answers`: indices of the messages to learn. Raises: Rejected if one cannot be located with certainty.
        """
        if self.program.notes.is_used:
            return joined(self._marked(conversation, rendering, answers))
        if not any(stop for _, stop in rendering.turns):
            return joined(self._by_prefixes(conversation, rendering.text, answers))
        written = (index for index in answers if rendering.turns[index][1])
        return joined([span for index in written for span in self._of_answer(conversation, rendering, index)])

    def _marked(self, conversation: Conversation, rendering: Rendering, answers: Sequence[int]) -> Spans:
        if len(answers) == sum(message["role"] == "assistant" for message in conversation.messages):
            return rendering.marked
        starts = {turn[0]: index for index, turn in enumerate(rendering.turns) if turn[1]}
        if answers and not starts:
            raise Rejected("template_prefix", "it is not clear to which messages the {% generation %} blocks belong")
        owners = [
            starts.get(max((start for start in starts if start <= span[0]), default=-1)) for span in rendering.marked
        ]
        return [span for span, owner in zip(rendering.marked, owners, strict=True) if owner in answers]

    def _of_answer(self, conversation: Conversation, rendering: Rendering, index: int) -> Spans:
        messages, (_, stop) = conversation.messages, rendering.turns[index]
        start = self._start(conversation, rendering, index)
        if index + 1 == len(messages):
            stop = len(rendering.text)
        elif self.traits.is_open:
            stop = self._marker_end(rendering.text, stop)
        elif messages[index + 1]["role"] == "tool" and not rendering.turn(index + 1):
            return self._without_tool_answers(conversation, rendering, index, start)
        return [(start, stop - self._space_behind(rendering.text, start, stop))]

    def _marker_end(self, text: bytes, stop: int) -> int:
        # If the next turn's first token is not an added token, its first byte is enough to learn the token.
        at = len(text) - len(text[stop:].lstrip())
        added = map(str.encode, self.program.settings.added_tokens)
        tokens = (token for token in added if text.startswith(token, at))
        return max((at + len(token) for token in tokens), default=min(at + 1, len(text)))

    def _space_behind(self, text: bytes, start: int, stop: int) -> int:
        if self.program.settings.whole_turns or not text.endswith(self.traits.closings, start, stop):
            return 0
        return stop - start - len(text[start:stop].rstrip())

    def _start(self, conversation: Conversation, rendering: Rendering, index: int) -> int:
        start, stop = rendering.turns[index]
        header = self.traits.header
        if self.program.settings.whole_turns:
            role = _OPENED_THOUGHT.sub(b"", header)
            if rendering.text.startswith(role, start, stop):
                return start + len(role)
        prompt = self.traits.prompt
        if prompt is None or conversation.options:
            prompt = self._prompt(conversation.until(index), rendering.text[:stop], start)
        for beginning in (prompt, header):
            if rendering.text.startswith(beginning, start, stop):
                return start + len(beginning)
        if index == 0 and header in rendering.text[start:stop]:
            return rendering.text.index(header, start) + len(header)
        if index and (
            conversation.messages[index - 1]["role"] == "assistant" or not _shared([header, rendering.turn(index)])
        ):
            return start  # the turn continues the previous answer, or has no header
        begun = rendering.text[start:stop][:40].decode(errors="replace")
        raise Rejected(
            "template_prefix", f"message {index} begins with {begun!r}, unlike answers in trial conversations"
        )

    def _prompt(self, conversation: Conversation, text: bytes, start: int) -> bytes:
        try:
            prompted = self.program.run(conversation, prompt=True)
        except Refused:  # the template allows no conversation that ends here
            return self.traits.header
        if text.startswith(prompted.text) and len(prompted.text) >= start:
            return prompted.text[start:]
        return prompted.text[prompted.end :]

    def _without_tool_answers(self, conversation: Conversation, rendering: Rendering, index: int, start: int) -> Spans:
        # The turn contains tool results, between the answer's calls and its content.
        begun, stop = rendering.turns[index]
        messages = conversation.messages
        before, message, after = messages[:index], messages[index], messages[index + 1 :]
        more: Spans = []
        if message.get("content"):
            message = {**message, "content": _SENTINEL}
            changed = self.program.run(dataclasses.replace(conversation, messages=[*before, message, *after]))
            at = changed.turn(index).find(_SENTINEL.encode())
            if at < 0:
                raise Rejected("template_prefix", f"message {index}: its content is not found near the tools' results")
            more = [(begun + at, stop - self._space_behind(rendering.text, start, stop))]
        later = itertools.dropwhile(lambda message: message["role"] == "tool", after)
        alone = self.program.run(dataclasses.replace(conversation, messages=[*before, message, *later]))
        calls = begun + len(_shared([alone.turn(index), rendering.text[begun:stop]]))
        return [(start, self.before_token(rendering.text, calls)), *more]

    def before_token(self, text: bytes, stop: int) -> int:
        """Return the start of an added token that begins before byte `stop` and ends after it, else `stop`."""
        tokens = [token.encode() for token in self.program.settings.added_tokens]
        begun = (
            at for token in tokens for at in range(max(0, stop - len(token) + 1), stop) if text.startswith(token, at)
        )
        return min(begun, default=stop)

    def _by_prefixes(self, conversation: Conversation, text: bytes, answers: Sequence[int]) -> Spans:
        spans: Spans = []
        for index in answers:
            try:
                prompted = self.program.run(conversation.until(index), prompt=True).text
                answered = self.program.run(conversation.until(index + 1)).text
            except Refused as refused:
                raise Rejected("template_prefix", f"up to message {index}: {refused.detail}") from refused
            if not answered.startswith(prompted) or not text.startswith(answered):
                detail = f"the template writes message {index} differently once the conversation continues"
                raise Rejected("template_prefix", detail)
            spans.append((len(prompted), len(answered) - self._space_behind(answered, len(prompted), len(answered))))
        return spans

    @functools.cached_property
    def traits(self) -> Traits:
        trials = [self._tried([QUESTION, answer] * count) for answer in (ANSWER, _THOUGHT) for count in (2, 1)]
        done = [trial for trial in trials if trial is not None]
        prompted = self._tried([QUESTION], prompt=True)
        prompt = b"" if prompted is None else prompted.text[prompted.end :]
        answers = [trial.turn(index) for trial in done for index in range(1, len(trial.turns), 2) if trial.turn(index)]
        plain, content = trials[0], ANSWER["content"].encode()
        after = plain.text[plain.turns[1][1] :].lstrip() if plain is not None else b""
        return Traits(
            prompt=prompt if has_constant_prompt(self.program.tree) else None,
            header=_shared([prompt, *answers]),
            closings=tuple({tail for trial in done[:2] for tail in self._closings(trial)}),
            is_open=plain is not None
            and plain.turn(1).endswith(content)
            and bool(after)
            and not after.startswith(QUESTION["content"].encode()),
        )

    def _tried(self, messages: list[Message], *, prompt: bool = False) -> Rendering | None:
        # Messages are copied, because `id` identifies them. Some templates accept only lists of parts.
        for copies in ([dict(message) for message in messages], list(map(in_parts, messages))):
            with contextlib.suppress(Rejected):
                trial = self.program.run(Conversation(copies), prompt=prompt)
                if QUESTION["content"].encode() in trial.text:
                    return trial
        return None

    def _closings(self, trial: Rendering) -> list[bytes]:
        closings = []
        for stop in {len(trial.text), *(stop for _, stop in trial.turns[1::2])}:
            tail = trial.text[:stop].decode(errors="ignore").rpartition(ANSWER["content"])[2]
            space = tail[len(tail.rstrip()) :]
            tokens = [token for token in self.program.settings.added_tokens if tail.rstrip().endswith(token)]
            if space and tokens:
                closings.append((max(tokens, key=len) + space).encode())
        return closings


def joined(spans: Spans) -> Spans:
    """Sort spans [start, stop), merge adjacent and overlapping ones, and drop empty ones."""
    merged: Spans = []
    end = -1
    for start, stop in sorted(spans):
        if start >= stop:
            continue
        if start <= end:
            merged[-1] = (merged[-1][0], max(stop, end))
        else:
            merged.append((start, stop))
        end = merged[-1][1]
    return merged


def _shared(texts: list[bytes]) -> bytes:
    size = min(num_shared(texts[0], text) for text in texts)
    return texts[0][:size].decode(errors="ignore").encode()


def has_constant_prompt(tree: nodes.Template) -> bool:
    """Return whether a template's text after its last loop, such as the generation prompt, is always the same."""
    last = max((at for at, node in enumerate(tree.body) if isinstance(node, nodes.For)), default=-1)
    fixed = {node: node.target for node in tree.body if isinstance(node, nodes.Assign)}
    names = list(tree.find_all(nodes.Name))
    changing = {"messages", "tools", *(reference.name for reference in tree.find_all(nodes.NSRef))}
    changing |= {name.name for name in names if name.ctx != "load" and name not in fixed.values()}
    for node, target in fixed.items():
        if not isinstance(target, nodes.Name) or changing & {name.name for name in node.node.find_all(nodes.Name)}:
            changing |= {name.name for name in node.find_all(nodes.Name) if name.ctx == "store"}
    tail = [name.name for node in tree.body[last + 1 :] for name in node.find_all(nodes.Name)]
    return last >= 0 and not changing.intersection(tail)
