"""Find the thoughts or tool calls of an answer, for --learn-not, by rendering the conversation again without them.

    rendered    <|im_start|>assistant⏎<think>⏎They ask for 4.⏎</think>⏎⏎It is 4.<|im_end|>
    without     <|im_start|>assistant⏎<think>⏎⏎</think>⏎⏎It is 4.<|im_end|>
    skipped                                  └──────────────┘

The skipped part is between both texts' common beginning and common end, as in NeMo Automodel (`_build_reasoning_mask`);
docs/format.md describes the white space around it.
"""

import itertools
import re
from collections.abc import Callable

from pipelines.prepare.tokenize.chat.answers import AnswerFinder
from pipelines.prepare.tokenize.chat.conversation import (
    MASK,
    REASONING,
    Conversation,
    Message,
    Refused,
    Rejected,
    num_shared,
)
from pipelines.prepare.tokenize.chat.environment import Spans
from pipelines.prepare.tokenize.chat.program import Rendering

_THOUGHT = re.compile("(?<=<think>).*?(?=</think>)|\\A(?:(?!<think>).)*(?=</think>)", re.DOTALL)


def part_spans(finder: AnswerFinder, conversation: Conversation, found: Rendering, index: int, part: str) -> Spans:
    """Return the byte spans of one part ("thoughts" or "tool_calls") of the answer at message `index`.

    `found`: the rendered conversation.
    Raises: Rejected if the template requires the part.
    """
    messages = conversation.messages
    shorter = _WITHOUT[part](messages[index])
    if shorter == messages[index]:
        return []
    detail = ""
    # Some templates refuse tool results without a call: the second attempt omits them.
    after = messages[index + 1 :]
    for later in (after, itertools.dropwhile(lambda message: message["role"] == "tool", after)):
        without = [*messages[:index], shorter, *later]
        try:
            other = finder.program.run(Conversation(without, conversation.tools, options=conversation.options))
            return _between(finder, found, other, index)
        except Refused as refused:
            detail = refused.detail
    raise Rejected(MASK, f"the chat template refuses message {index} without its {part}: {detail}")


def _between(finder: AnswerFinder, whole: Rendering, shorter: Rendering, index: int) -> Spans:
    has_turns = whole.turn(index) and shorter.turn(index)
    text, changed = (rendering.turn(index) if has_turns else rendering.text for rendering in (whole, shorter))
    start = num_shared(text, changed)
    stop = len(text) - num_shared(text[start:][::-1], changed[start:][::-1])
    if start == stop:
        return []
    # If the part and the text after it begin alike, as with "<", move the span to end before an added token.
    moved = stop - finder.before_token(text, stop)
    if moved <= start and text[start - moved : start] == text[stop - moved : stop]:
        start, stop = start - moved, stop - moved
    before, after = text[:start], text[stop:]
    is_joined = before[-1:].isspace() and after[:1].isspace() and len(changed) - start == len(after)
    if is_joined and finder.program.settings.joins_line_breaks:
        start, stop = len(before.rstrip()), len(text) - len(after.lstrip())
    while text[start] & 0xC0 == 0x80:  # extend the span to a whole UTF-8 character
        start -= 1
    offset = whole.turns[index][0] if has_turns else 0
    return [(offset + start, offset + stop)]


def _without_thoughts(message: Message) -> Message:
    kept = {name: value for name, value in message.items() if name not in REASONING or not value}
    content = message.get("content")
    if isinstance(content, str):
        kept["content"] = _THOUGHT.sub("", content)
    elif isinstance(content, list):
        kept["content"] = [{**part, "text": _THOUGHT.sub("", part["text"])} for part in content]
    return kept


def _without_calls(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    return {"content": "", **{name: value for name, value in message.items() if name != "tool_calls"}}


_WITHOUT: dict[str, Callable[[Message], Message]] = {"thoughts": _without_thoughts, "tool_calls": _without_calls}
