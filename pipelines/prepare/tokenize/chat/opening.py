"""A tokenizer's chat template, opened for rendering: chosen by its name, and tried on a question and its answer."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

from pipelines.prepare.tokenize.chat import protocol
from pipelines.prepare.tokenize.chat.conversation import ANSWER, QUESTION
from pipelines.prepare.tokenize.chat.messages import Conversations
from pipelines.prepare.tokenize.chat.template import Template
from tfrecord_io.errors import TokenizerError

__all__ = ["open_template"]


def open_template(
    tokenizer: Any, *, date: datetime.date | None = None, name: str | None = None, limits: protocol.Limits | None = None
) -> Template:
    """Open the tokenizer's template: that with the `name`, or of several the one that `transformers` takes. `date` is
    what it is told if it asks for today's.

    Raises: TokenizerError if there is none (with that name), it writes a date and none is given, it takes more than it
        may, or it does not say which part of a conversation is the assistant's.
    """
    _require_template(tokenizer, name=name)
    facts = protocol.TemplateFacts(
        source=str(tokenizer.get_chat_template(name, None)),
        tools_source=str(tokenizer.get_chat_template(name, [])),
        variables=dict(tokenizer.special_tokens_map),
        added_tokens=sorted(map(str, tokenizer.get_added_vocab())),
        date=None if date is None else date.isoformat(),
    )
    template = Template(protocol.Settings(template=facts, limits=limits or protocol.Limits()))
    _try_out(template)
    return template


def _try_out(template: Template) -> None:
    rendered = template.probe(Conversations.of(pa.array([[QUESTION, ANSWER]])))
    reason, detail = rendered.reasons[0], rendered.details.get(0, "")
    if reason == "template_prefix":
        raise _no_telling(detail)
    if reason == protocol.OVER_LIMIT:
        raise TokenizerError(
            f"the chat template takes more for a question and its answer than a row may: {detail}",
            remedy="do not use this tokenizer, or mend the template in a copy of it",
        )
    if not reason and not rendered.texts.learned.any():
        raise _no_telling("none of its text is within {% generation %} markers")
    # Any other reason: it wants something else than a question and an answer, and the rows will show what.


def _require_template(tokenizer: Any, *, name: str | None) -> None:
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


def _no_telling(why: str) -> TokenizerError:
    return TokenizerError(
        f"the chat template does not tell which part of a conversation is the assistant's: {why}",
        remedy="in a copy of the tokenizer, put {% generation %} and {% endgeneration %} around it in the template",
    )
