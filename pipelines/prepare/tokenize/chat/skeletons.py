"""What a chat template makes of conversations with the same roles: fixed text around their contents.

For the roles (user, assistant) of a ChatML template, `{i}` being the content of message i and underlined what is to be
learned, the skeleton is

    <|im_start|>user⏎ {0} <|im_end|>⏎<|im_start|>assistant⏎ {1} <|im_end|> ⏎
                                                            --- ----------

Conversations of a dataset differ in their contents far more than in their roles, so that rendering them becomes a copy
of bytes (`filling`). A skeleton is learned by running the template on strings that watch it (`tracing`), and taken only
if it gives the template's text, and the same parts to be learned, for contents that are as awkward as can be.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from pipelines.prepare.tokenize.chat.limits import OverLimit
from pipelines.prepare.tokenize.chat.messages import Message, Rejected
from pipelines.prepare.tokenize.chat.rendering import (
    ChatTemplate,
    Rendering,
    Spans,
    internals,
    joined_spans,
    spans_by_prefixes,
)
from pipelines.prepare.tokenize.chat.tracing import MARK, MARK_LETTERS, Trace, Untraceable

__all__ = ["Segment", "Skeleton", "learn"]

# Each would show a template that escapes, folds case, strips, splits at lines, or looks for something.
_AWKWARD = (
    ' "quoted" \\ back\\nslash\ttab & <b>Tag</b> {{ x }} {% y %} it\'s\r\n two\n\nlines \n',
    "\n\u00a0ÜNÏcode ﬁ 漢字 👍🏽 e\u0301 ΣΊΣΥΦΟΣ\u2028İ\u3000",
    "0",
    "\t[INST] <<SYS>> <think>a</think> <|im_end|>\nassistant\n### User: ```json\n{}\n``` ",
)


@dataclasses.dataclass(frozen=True)
class Segment:
    """Fixed `text`, or the content of a `message`, stripped at the ends or not; learned or not."""

    text: str
    message: int
    left: bool
    right: bool
    learned: bool

    def filled(self, contents: Sequence[str]) -> str:
        """The segment in a conversation with these contents."""
        if self.message < 0:
            return self.text
        content = contents[self.message]
        content = content.lstrip() if self.left else content
        return content.rstrip() if self.right else content


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skeleton:
    """The segments of all conversations with certain roles, as long as none of their contents is blank, contains one of
    the `needles`, or has one of the characters `edges` at an end.
    """

    segments: tuple[Segment, ...]
    needles: frozenset[str]
    edges: frozenset[str]

    def fits(self, content: str) -> bool:
        """Whether it holds for conversations with this content."""
        return (
            not content.isspace()
            and content != ""
            and not any(needle in content for needle in self.needles)
            and not {content[0], content[-1]} & self.edges
        )

    def fill(self, contents: Sequence[str]) -> Rendering:
        """The rendering of a conversation with these contents."""
        text, spans = "", []
        for segment in self.segments:
            filled = segment.filled(contents)
            if segment.learned:
                spans.append((len(text), len(text) + len(filled)))
            text += filled
        return Rendering(text, joined_spans(spans))


def learn(template: ChatTemplate, roles: Sequence[str]) -> Skeleton | None:
    """The skeleton for conversations with these roles; None if the template makes something else of them."""
    trace = Trace()
    try:
        traced = _render(template, [{"role": role, "content": trace.content(i)} for i, role in enumerate(roles)])
    except (Untraceable, Rejected):
        return None
    segments = None if trace.broken else _segments(traced)
    if segments is None:
        return None
    skeleton = Skeleton(segments=segments, needles=frozenset(trace.needles), edges=frozenset(trace.edges))
    return skeleton if _holds(skeleton, template, roles) else None


def _render(template: ChatTemplate, messages: Sequence[Message]) -> Rendering:
    """As `ChatTemplate.render`, on contents that only the template itself may see: `transformers` would copy them."""

    def rendered(messages: Sequence[Message], *, prompt: bool) -> tuple[str, Spans]:
        with template.compiled() as compiled:
            try:
                text, spans = internals()._render_with_assistant_indices(
                    compiled, messages, None, None, prompt, **template.variables()
                )
            except (Untraceable, OverLimit, MemoryError):
                raise
            except Exception as error:  # as there
                raise Rejected("template_rejected", str(error)) from error
        return text, spans

    text, spans = rendered(messages, prompt=False)
    if not template.has_markers():
        spans = spans_by_prefixes(
            text, messages, lambda *args, **kwargs: rendered(*args, **kwargs)[0], closing=template.closing
        )
    return Rendering(text, joined_spans(spans))


def _segments(traced: Rendering) -> tuple[Segment, ...] | None:
    """The text, cut at contents and where learning begins or ends; None if that is within a content's mark."""
    cuts = sorted({0, len(traced.text), *(edge for span in traced.spans for edge in span)})
    segments: list[Segment] = []
    for start, stop in itertools.pairwise(cuts):
        learned = any(first <= start and stop <= last for first, last in traced.spans)
        piece, at = traced.text[start:stop], 0
        for found in MARK.finditer(piece):
            segments.append(Segment(piece[at : found.start()], -1, False, False, learned))
            message, ends = int(found[1]), found[2]
            segments.append(Segment("", message, ends in ("l", "b"), ends in ("r", "b"), learned))
            at = found.end()
        segments.append(Segment(piece[at:], -1, False, False, learned))
    if any(MARK_LETTERS & set(segment.text) for segment in segments):
        return None
    return tuple(segment for segment in segments if segment.text or segment.message >= 0)


def _holds(skeleton: Skeleton, template: ChatTemplate, roles: Sequence[str]) -> bool:
    """Whether it gives what the template gives, each message having each awkward content once."""
    awkward = [content for content in _AWKWARD if skeleton.fits(content)] or ["a"]
    for shift in range(len(awkward)):
        contents = [awkward[(index + shift) % len(awkward)] for index in range(len(roles))]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        try:
            if template.render(messages) != skeleton.fill(contents):
                return False
        except Rejected:
            return False
    return True
