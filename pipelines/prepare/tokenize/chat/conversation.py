"""Convert one row to the conversation that a chat template renders.

A null counts as a missing key, as in `apply_chat_template` of `transformers` 5.23. Rendering processes import this
module, so it imports no large library except PyArrow.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.sources.columns.messages import OF_PROMPT, whole_function
from tfrecord_io.shown import some

Message = dict[str, Any]

# Reasons for rejection. INVALID and DATE_UNKNOWN affect all rows.
OVER_LIMIT, INVALID, DATE_UNKNOWN = "template_limit", "template_invalid", "template_date"
MASK = "mask_not_clear"

QUESTION: Message = {"role": "user", "content": "what is it"}
ANSWER: Message = {"role": "assistant", "content": "that one"}

_MAX_DETAIL = 300
# Names of an answer's thought in datasets. Templates read the first or the second.
REASONING = ("reasoning_content", "thinking", "reasoning")
ARGUMENTS = {"what": "that one"}
_TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}


class Rejected(Exception):
    """Error for an unusable conversation, with a reason for the ledger and a detail for users."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = " ".join(detail.split())[:_MAX_DETAIL]


class Refused(Rejected):
    """Error for a conversation that the template cannot render."""

    def __init__(self, detail: str) -> None:
        super().__init__("template_rejected", detail)


@dataclasses.dataclass(frozen=True)
class Conversation:
    """Messages for a chat template, with the parts that are not learned. All values have JSON types.

    `unlearned`: indices of messages that are not learned. `withheld`: for answers learned in part, a flag for each
    character, True if it is not learned, by message index and field (`content` or `reasoning_content`). `options`: the
    row's template variables.
    """

    messages: Sequence[Message]
    tools: list[Any] | None = None
    unlearned: frozenset[int] = frozenset()
    withheld: Mapping[int, Mapping[str, Sequence[bool]]] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def learned(self) -> list[int]:
        """Return the indices of the assistant's messages that are learned."""
        messages, unlearned = self.messages, self.unlearned
        return [at for at, message in enumerate(messages) if message["role"] == "assistant" and at not in unlearned]

    def until(self, stop: int) -> "Conversation":
        return dataclasses.replace(self, messages=self.messages[:stop])


class Needs:
    """The form of contents and tool arguments that a template needs, found with trial conversations.

    `render`: renders messages and tools to UTF-8. `reads_parts`: returns whether contents of a role must be lists of
    parts.
    """

    def __init__(self, render: Callable[[list[Message], list[Any] | None], bytes]) -> None:
        self._render = render
        self.reads_parts = functools.cache(self._reads_parts)

    def _reads_parts(self, role: str) -> bool:
        for messages, tools in (
            ([{"role": "system", "content": "be brief"}, QUESTION, ANSWER], None),
            ([QUESTION, ANSWER], None),
            *map(calling, (ARGUMENTS, json.dumps(ARGUMENTS))),
        ):
            at = next((at for at, message in enumerate(messages) if message["role"] == role), None)
            if at is not None and self._tried(messages, tools) is not None:
                plain = messages[at]
                messages[at] = in_parts(plain)
                return _has_read(self._tried(messages, tools), plain)
        # Some templates accept only lists of parts as contents.
        all_in_parts = [in_parts({**QUESTION, "role": role}), in_parts(ANSWER)]
        return _has_read(self._tried(all_in_parts, None), QUESTION)

    @functools.cached_property
    def parsed_arguments(self) -> bool:
        """Whether arguments of tool calls must be objects, because the template changes JSON text."""
        as_text = json.dumps(ARGUMENTS)
        rendered = self._tried(*calling(as_text))
        return (rendered is None or as_text.encode() not in rendered) and self._tried(*calling(ARGUMENTS)) is not None

    def _tried(self, messages: list[Message], tools: list[Any] | None) -> bytes | None:
        with contextlib.suppress(Refused):
            return self._render(messages, tools)
        return None


def in_parts(message: Message) -> Message:
    """Return the message with its content as a list of one part."""
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _has_read(text: bytes | None, message: Message) -> bool:
    return text is not None and message["content"].encode() in text and not re.search(rb"""['"]text['"]""", text)


def num_shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the length of the common beginning of two sequences."""
    size = min(len(first), len(second))
    return next((at for at in range(size) if first[at] != second[at]), size)


def calling(arguments: Any = ARGUMENTS) -> tuple[list[Message], list[Any]]:
    """Return a trial conversation with a tool call, and the list of its tools."""
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "call00001", "name": "look", "content": "seen"}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [QUESTION, calling, result, ANSWER], [{"type": "function", "function": _TOOL}]


def plain_rows(column: pa.Array) -> list[list[Message]] | None:
    """Return the conversations in a column of message lists; None unless each message is a `role` and a `content`."""
    flat = column.flatten()
    fields = {field.name: flat.field(at) for at, field in enumerate(flat.type)} if pa.types.is_struct(flat.type) else {}
    used = [name for name, values in fields.items() if values.null_count < len(values)]
    texts = (pa.string(), pa.large_string())
    if sorted(used) != ["content", "role"] or flat.null_count:
        return None
    if any(fields[name].null_count or fields[name].type not in texts for name in used):
        return None
    # `to_pylist` of the whole struct would take five times as long.
    values = zip(*(fields[name].to_pylist() for name in used), strict=True)
    messages = (dict(zip(used, pair, strict=True)) for pair in values)
    return [list(itertools.islice(messages, length or 0)) for length in pc.list_value_length(column).to_pylist()]


def conversation_of(
    messages: Sequence[Any], tools: Any = None, options: Any = None, *, needs: Needs, learns_prompts: bool = False
) -> Conversation:
    """Convert one row's messages, tools and template variables (`options`) to a `Conversation`.

    A message, a part of its content or thought, or a range of characters (in `train_detail`) is not learned if `weight`
    (OpenAI) is 0 or `train` (Axolotl) is false. If both are given, `train` applies. `learns_prompts`: also learn the
    answers in the prompt of a row with prompt and completion.
    Raises: Rejected.
    """
    kept, unlearned, withheld = [], set(), {}
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Rejected("role_missing", f"message {index}")
        fields = {name: value for name, value in message.items() if value is not None}
        of_prompt = fields.pop(OF_PROMPT, False) and not learns_prompts
        characters = _withheld(fields, f"message {index}")
        if not _is_learned(fields, f"message {index}") or of_prompt:
            unlearned.add(index)
        elif characters:
            withheld[index] = characters
        kept.append(_message(fields, index, needs))
    return Conversation(kept, _tools(tools), frozenset(unlearned), withheld, _options(options))


def roles_without_effect(messages: Iterable[Any]) -> list[str]:
    """Return the roles, except assistant, of messages with a true `train`, which has no effect there."""
    roles = set()
    for message in messages:
        flags = {"train": message.get("train")} if isinstance(message, dict) else {}
        with contextlib.suppress(Rejected):
            if any(value is not None for value in flags.values()) and _is_learned(flags, ""):
                roles.add(str(message.get("role")))
    return sorted(roles - {"assistant"})


def _is_learned(message: Message, place: str) -> bool:
    values = [(name, message.pop(name, None)) for name in ("train", "weight")]
    flags = [(name, value) for name, value in values if value is not None]
    for name, value in flags:
        read = value
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                read = json.loads(value.strip().lower())
        if not isinstance(read, bool | int | float):
            raise Rejected(MASK, f"{place} has {name} {value!r}, expected true or false, or a number")
        if name == "train" or len(flags) == 1:
            return bool(read)
    return True


def _withheld(message: Message, place: str) -> dict[str, list[bool]]:
    # Removes the masks from the message, and returns, by field, whether each character is masked.
    masks, details = {"content": _of_parts(message, "content", place)}, message.pop("train_detail", None)
    if details == []:  # as in Axolotl
        message.setdefault("train", False)
    elif details is not None:
        learned = _learned_characters(details, len(masks["content"]), place)
        masks["content"] = [flag or not kept for flag, kept in zip(masks["content"], learned, strict=True)]
    for name in reversed([name for name in REASONING if name in message]):  # the first name in REASONING applies
        masks["reasoning_content"] = _of_parts(message, name, f"the thought of {place}")
    return {name: characters for name, characters in masks.items() if any(characters)}


def _of_parts(message: Message, name: str, place: str) -> list[bool]:
    if not isinstance(content := message.get(name, ""), list | dict):
        return [False] * len(content) if isinstance(content, str) else []
    content = [content] if isinstance(content, dict) else content
    message[name] = parts = [dict(part) if isinstance(part, dict) else part for part in content]
    texts = [part for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    flags = [(not _is_learned(part, f"a part of {place}"), len(part["text"])) for part in texts]
    return [flag for flag, size in flags for _ in range(size)]


def _learned_characters(details: Any, size: int, place: str) -> list[bool]:
    trained, untrained = bytearray(size), bytearray(size)
    for detail in details if isinstance(details, list) else [None]:
        entry = dict(detail) if isinstance(detail, dict) else {}
        first, last = entry.get("begin_offset", -1), entry.get("end_offset", -1)
        if not type(first) is type(last) is int or not 0 <= first <= last < size or "train" not in entry:
            expected = f"train, and begin_offset and end_offset within its content of {some(size, 'character')}"
            raise Rejected(MASK, f"{place} has train_detail {detail or details!r}, expected {expected}")
        marked = trained if _is_learned(entry, f"train_detail of {place}") else untrained
        marked[first : last + 1] = b"\1" * (last + 1 - first)
    return [bool(keep and not drop) for keep, drop in zip(trained, untrained, strict=True)]


def _message(message: Message, index: int, needs: Needs) -> Message:
    if message.keys() == {"role"}:
        raise Rejected("content_null", f"message {index} has nothing but the role {message['role']!r}")
    for name in ("content", *REASONING):
        if isinstance(parts := message.get(name, ""), str) or not (name == "content" or isinstance(parts, list | dict)):
            continue
        for part in parts if isinstance(parts, list) else [parts]:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                kind = part.get("type", "object") if isinstance(part, dict) else type(part).__name__
                raise Rejected("content_not_text", f"message {index} has a part of type {kind}, expected text")
        if name != "content" or not needs.reads_parts(message["role"]):  # templates can read thoughts only as texts
            message[name] = "".join(part["text"] for part in parts)
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(message["tool_calls"], index, needs)
    message = _json_types(message)
    reasoning = next((message[name] for name in REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _tool_calls(calls: Any, index: int, needs: Needs) -> Any:
    if isinstance(calls, str):
        parsed = _from_json(calls, "tool_calls_not_json", f"message {index}")
        calls = list(map(whole_function, parsed if isinstance(parsed, list) else [parsed]))
    return [_with_arguments(call, index, needs) for call in calls] if isinstance(calls, list) else calls


def _with_arguments(call: Any, index: int, needs: Needs) -> Any:
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        return {**call, "function": _with_arguments(call["function"], index, needs)}
    if not isinstance(call, dict) or not isinstance(text := call.get("arguments"), str) or not needs.parsed_arguments:
        return call
    place = f"the arguments of a tool call in message {index}"
    return {**call, "arguments": _from_json(text, "tool_calls_not_json", place) if text.strip() else {}}


def _from_json(text: str, reason: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Rejected(reason, f"{place}: {error}") from error


def _tools(tools: Any) -> list[Any] | None:
    if isinstance(tools, str):
        tools = _from_json(tools, "tools_not_json", "the tools") if tools.strip() else None
    if not tools:
        return None
    if isinstance(tools, list):
        tools = [_from_json(tool, "tools_not_json", "a tool") if isinstance(tool, str) else tool for tool in tools]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Rejected("tools_not_json", f"found {type(tools).__name__}, expected a list of objects")
    return [_json_types(tool) for tool in tools]


def _options(options: Any) -> dict[str, Any]:
    if isinstance(options, str):
        options = _from_json(options, "options_not_json", "the options") if options.strip() else None
    if not isinstance(values := _json_types(options or {}), dict):
        raise Rejected("options_not_json", f"found {type(options).__name__}, expected an object")
    return values


def check_parts_read(messages: Sequence[Message], text: bytes) -> None:
    """Check that a rendered text does not contain a list of parts in Python's notation. Raises: Rejected."""
    for index, message in enumerate(messages):
        content = message.get("content", "")
        if isinstance(content, str):
            continue
        parts = [content, *content] if isinstance(content, list) else [content]
        if any(str(part).encode() in text for part in parts if part):
            raise Rejected("content_not_text", f"message {index} has a list of parts, which the template cannot read")


def _json_types(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, dict):
        return {name: _json_types(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_json_types(item) for item in value)
    return f"<{type(value).__name__}>"  # as `transformers` 5.23 does
