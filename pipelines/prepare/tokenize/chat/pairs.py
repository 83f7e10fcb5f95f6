"""Split preference pairs. Rendering processes import this module, so it imports no large library."""

import itertools
from collections.abc import Sequence
from typing import Any

from pipelines.prepare.tokenize.chat.conversation import REASONING, Rejected, num_shared

Messages = Sequence[Any]


def split_pair(prompt: Messages | None, chosen: Messages, rejected: Messages) -> list[list[Any]]:
    """Return the messages of a preference pair's prompt, chosen answer and rejected answer.

    If `prompt` is None, or both answers repeat it, the prompt is their common beginning.
    Raises: Rejected if the prompt or an answer is empty, or if the answers are equal.
    """
    system = [] if prompt is None else list(itertools.takewhile(_is_system, prompt))
    question = None if prompt is None else prompt[len(system) :] or prompt
    if question is None or all(_repeats(answer, question) for answer in (chosen, rejected)):
        # The last message of the shorter one is never shared, as in TRL's `extract_prompt`.
        size = num_shared(chosen[:-1], rejected[:-1])
        prompt, chosen, rejected = chosen[:size], chosen[size:], rejected[size:]
        if all(map(_is_system, prompt)):
            raise Rejected("prompt_empty")
        prompt = prompt if _is_system(prompt[0]) else [*system, *prompt]
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not any(map(_has_content, answer)):
            raise Rejected(f"{name}_empty")
    if not prompt:
        raise Rejected("prompt_empty")
    if chosen == rejected:
        raise Rejected("answers_equal")
    return [list(prompt), list(chosen), list(rejected)]


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "system"


def _repeats(answer: Messages, prompt: Messages) -> bool:
    starts = (0, 1) if answer and _is_system(answer[0]) else (0,)
    return any(list(answer[start : start + len(prompt)]) == list(prompt) for start in starts)


def _has_content(message: Any) -> bool:
    return not isinstance(message, dict) or any(message.get(field) for field in ("content", *REASONING, "tool_calls"))
