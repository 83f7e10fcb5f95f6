"""Find the prompts of preference pairs. Rendering processes import this module, so it imports no large library."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from pipelines.prepare.tokenize.chat.conversation import Rejected

Messages = Sequence[Any]


class Pair(NamedTuple):
    """Messages of a prompt and of its two answers."""

    prompt: list[Any]
    chosen: list[Any]
    rejected: list[Any]


def pair_of(prompt: Messages | None, chosen: Messages, rejected: Messages) -> Pair:
    """Return the prompt and the answers of a row.

    If `prompt` is None, or if both answers repeat it, the prompt is the common beginning of the answers.
    Raises: Rejected if the prompt or an answer is empty, or if the answers are equal.
    """
    system = [] if prompt is None else list(itertools.takewhile(_is_system, prompt))
    question = None if prompt is None else prompt[len(system) :] or prompt
    if question is None or all(_repeats(answer, question) for answer in (chosen, rejected)):
        size = shared_turns(chosen, rejected)
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
    return Pair(list(prompt), list(chosen), list(rejected))


def shared_turns(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Count the first items that both share, without the last item of the shorter one, as TRL's `extract_prompt`."""
    most = max(min(len(chosen), len(rejected)) - 1, 0)
    return next((at for at in range(most) if chosen[at] != rejected[at]), most)


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "system"


def _repeats(answer: Messages, prompt: Messages) -> bool:
    starts = (0, 1) if answer and _is_system(answer[0]) else (0,)
    return any(list(answer[start : start + len(prompt)]) == list(prompt) for start in starts)


def _has_content(message: Any) -> bool:
    return not isinstance(message, dict) or any(value for name, value in message.items() if name != "role")
