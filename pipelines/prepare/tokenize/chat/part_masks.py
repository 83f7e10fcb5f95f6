"""Find the bytes of a rendered text that come from withheld characters: parts of an answer that are not learned.

The conversation is rendered again with a private-use letter before each run of learned or withheld characters, and
another at the end of the content:

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
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.prepare.tokenize.chat.conversation import MASK, REASONING, Conversation, Message, Refused, Rejected
from pipelines.prepare.tokenize.chat.environment import Spans

_PRIVATE = range(0xE000, 0xF900)
# Private-use letters, each after its position in the content, in characters.
_Marks = list[tuple[int, str]]


def skipped_spans(
    render: Callable[[Conversation], bytes],
    conversation: Conversation,
    text: bytes,
    index: int,
    field: str,
    learned: Spans,
) -> Spans:
    """Return the byte spans in `text` that come from withheld characters of one field of an answer.

    `index`: the answer's message index. `field`: `content` or `reasoning_content`. `learned`: the answer's learned
    spans, at least one. Raises: Rejected if the withheld bytes cannot be found.
    """
    messages, withheld = conversation.messages, conversation.withheld[index][field]
    starts = [at for at in range(len(withheld)) if at == 0 or withheld[at] != withheld[at - 1]]
    free = (letter for letter in map(chr, _PRIVATE) if letter.encode() not in text)
    letters = "".join(itertools.islice(free, len(starts) + 1))
    if len(letters) > len(starts):
        for marks, is_moved in _trials("".join(_texts(messages[index][field])), starts, letters):
            marked = [*messages[:index], _with(messages[index], field, marks), *messages[index + 1 :]]
            with_letters = _tried(render, dataclasses.replace(conversation, messages=marked))
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
    """Find the characters `letters` that were inserted into `text`, which gave `with_letters`.

    Return each one's index in `letters` and byte position in `text`; None if they are not in order, or if
    `with_letters` without them is not `text`.
    """
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


def _tried(render: Callable[[Conversation], bytes], conversation: Conversation) -> str:
    with contextlib.suppress(Refused):
        return render(conversation).decode()
    return ""
