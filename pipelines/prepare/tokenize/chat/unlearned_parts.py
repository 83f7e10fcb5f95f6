"""Find the parts of an answer that are not learned, by rendering the conversation again.

Thoughts or tool calls, for --learn-not, are left out. The skipped part is between both texts' common beginning and
common end, as in NeMo Automodel (`_build_reasoning_mask`); docs/format.md describes the white space around it:

    rendered    <|im_start|>assistant⏎<think>⏎They ask for 4.⏎</think>⏎⏎It is 4.<|im_end|>
    without     <|im_start|>assistant⏎<think>⏎⏎</think>⏎⏎It is 4.<|im_end|>
    skipped                                  └──────────────┘

Withheld characters get a private-use letter before each run of learned or withheld ones, and another at the end:

    content     Let me think.| The answer is 4.                          the first part has "train": false
    rendered    <|im_start|>assistant⏎①Let me think.② The answer is 4.③<|im_end|>⏎
    skipped                           └────────────┘

The letters may change the rest of the text, because the template strips white space or examines the beginning of the
content. Then a second attempt puts the letters after white space, and a third one also omits the first letter. More
bytes than requested may be skipped, but never fewer. If the text has no letter of a `reasoning_content`, the template
does not write it, and nothing is skipped.
"""

import bisect
import contextlib
import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

from pipelines.prepare.tokenize.chat.answers import AnswerFinder, joined
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

_THOUGHTS = re.compile("(?<=<think>).*?(?=</think>)|\\A(?:(?!<think>).)*(?=</think>)", re.DOTALL)
_PRIVATE = range(0xE000, 0xF900)
# Private-use letters, each after its position in the content, in characters.
_Marks = list[tuple[int, str]]


def unlearned_spans(
    finder: AnswerFinder, conversation: Conversation, rendering: Rendering, answers: Sequence[int]
) -> Spans:
    """Return the byte spans of a rendered conversation that are in answers, but not learned, sorted and disjoint.

    `answers`: indices of the messages to learn. Raises: Rejected if a span cannot be found with certainty.
    """
    spans: Spans = []
    for index in conversation.withheld.keys() & answers:
        if learned := finder.spans(conversation, rendering, [index]):
            for field in conversation.withheld[index]:
                spans += _withheld(finder, conversation, rendering.text, index, field, learned)
    for index, part in itertools.product(answers, finder.program.settings.learn_not):
        spans += _part(finder, conversation, rendering, index, part)
    return joined(spans)


def _part(finder: AnswerFinder, conversation: Conversation, rendering: Rendering, index: int, part: str) -> Spans:
    messages = conversation.messages
    shorter = {"thoughts": _without_thoughts, "tool_calls": _without_calls}[part](messages[index])
    if shorter == messages[index]:
        return []
    detail = ""
    # Some templates refuse tool results without a call: the second attempt omits them.
    after = messages[index + 1 :]
    for later in (after, itertools.dropwhile(lambda message: message["role"] == "tool", after)):
        without = [*messages[:index], shorter, *later]
        try:
            shortened = finder.program.run(Conversation(without, conversation.tools, options=conversation.options))
            return _between(finder, rendering, shortened, index)
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
        kept["content"] = _THOUGHTS.sub("", content)
    elif isinstance(content, list):
        kept["content"] = [{**part, "text": _THOUGHTS.sub("", part["text"])} for part in content]
    return kept


def _without_calls(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    return {"content": "", **{name: value for name, value in message.items() if name != "tool_calls"}}


def _withheld(
    finder: AnswerFinder, conversation: Conversation, text: bytes, index: int, field: str, learned: Spans
) -> Spans:
    messages, withheld = conversation.messages, conversation.withheld[index][field]
    starts = [at for at in range(len(withheld)) if at == 0 or withheld[at] != withheld[at - 1]]
    free = (letter for letter in map(chr, _PRIVATE) if letter.encode() not in text)
    letters = "".join(itertools.islice(free, len(starts) + 1))
    if len(letters) > len(starts):
        for marks, is_moved in _trials("".join(_texts(messages[index][field])), starts, letters):
            marked = [*messages[:index], _with(messages[index], field, marks), *messages[index + 1 :]]
            with_letters = _tried(finder, dataclasses.replace(conversation, messages=marked))
            if (places := _places(with_letters, text, letters)) is not None:
                if not places and field != "content":
                    return []
                places = [(0, learned[0][0]), *places, (len(starts), learned[-1][1])]
                return [
                    (len(text[:start].rstrip()) if is_moved else start, stop)
                    for (run, start), (last, stop) in itertools.pairwise(places)
                    if any(withheld[at] for at in starts[run:last])
                ]
    raise Rejected(MASK, f"message {index} is learned in part, but the chat template changes its content")


def _places(with_letters: str, text: bytes, letters: str) -> list[tuple[int, int]] | None:
    # The index in `letters` and byte position in `text` of each letter in `with_letters`; None if letters are not in
    # order, or if `with_letters` without them is not `text`.
    pieces = re.split(f"([{letters}])", with_letters)
    if "".join(pieces[::2]).encode() != text:
        return None
    ends = itertools.accumulate(len(piece.encode()) for piece in pieces[::2])
    numbers = [letters.index(letter) for letter in pieces[1::2]]
    return list(zip(numbers, ends, strict=False)) if numbers == sorted(numbers) else None


def _trials(content: str, starts: Sequence[int], letters: str) -> list[tuple[_Marks, bool]]:
    size, end = len(content), len(content.rstrip())
    behind_space = [min(size - len(content[start:].lstrip()), end) for start in starts]
    moved = list(zip([*behind_space, end], letters, strict=True))
    return [(list(zip([*starts, size], letters, strict=True)), False), (moved, True), (moved[1:], True)]


def _texts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _with(message: Message, field: str, marks: _Marks) -> Message:
    content = message[field]
    texts = _texts(content)
    starts = list(itertools.accumulate(map(len, texts), initial=0))[:-1]
    for place, letter in reversed(marks):
        part = bisect.bisect_right(starts, place) - 1
        at = place - starts[part]
        texts[part] = texts[part][:at] + letter + texts[part][at:]
    if isinstance(content, str):
        names = REASONING if field in REASONING else (field,)
        return {**message, **{name: texts[0] for name in names if message.get(name) == content}}
    return {**message, field: [{**part, "text": text} for part, text in zip(content, texts, strict=True)]}


def _tried(finder: AnswerFinder, conversation: Conversation) -> str:
    with contextlib.suppress(Refused):
        return finder.program.run(conversation).text.decode()
    return ""
