"""Proof by its syntax that a chat template writes each message without looking at later ones.

Such a template goes through `messages` in one loop at its top, and names them nowhere else, but for `messages[0]`; it
asks of `loop` only what depends on earlier messages. Behind the loop there is nothing but a constant within
{% if add_generation_prompt %}, the only use of this name. So until it takes message i, it does for the conversation
what it does for the first i messages alone (one or more): their text is what was written by then.

The templates of Qwen 1.5 and 2, Llama 3 and Gemma 2, and most that write <|im_start|>, are such; those that look for
the last question or hide earlier thoughts, as Qwen 3 does, are not.
"""

from __future__ import annotations

from jinja2 import nodes

_MESSAGES, _PROMPT = "messages", "add_generation_prompt"
_PAST_OF_LOOP = ("first", "index", "index0")


def prompt_behind_loop(tree: nodes.Template) -> str | None:
    """Return what such a template adds as generation prompt, '' for nothing; None for a template of another kind."""
    body = [node for node in tree.body if not _is_dead(node)]
    at = next((at for at, node in enumerate(body) if isinstance(node, nodes.For)), len(body))
    if at == len(body) or len(body) > at + 2:
        return None
    loop: nodes.For = body[at]  # type: ignore[assignment]
    tail = body[at + 1] if len(body) > at + 1 else None
    copies = [node for node in body[:at] if isinstance(node, nodes.Assign) and _is_name(node.node, _MESSAGES)]
    targets = [copy.target for copy in copies]
    iterated = [_MESSAGES, *(target.name for target in targets if isinstance(target, nodes.Name))]
    if loop.else_ or loop.test or not any(_is_name(loop.iter, name) for name in iterated):
        return None
    prompt = _constant_if_prompted(tail)
    if len(iterated) != 1 + len(copies):
        return None
    known = [loop.iter, *targets, *(copy.node for copy in copies), getattr(tail, "test", None)]
    items = (item for node in body for item in node.find_all(nodes.Getitem) if _is_name(item.node, _MESSAGES))
    known += [item.node for item in items if isinstance(item.arg, nodes.Const) and item.arg.value == 0]
    parts = (part for part in loop.find_all(nodes.Getattr) if _is_name(part.node, "loop"))
    known += [part.node for part in parts if part.attr in _PAST_OF_LOOP]
    told = {id(node) for node in known}
    uses = (name for node in body for name in node.find_all(nodes.Name))
    is_proved = all(id(name) in told for name in uses if name.name in (*iterated, "loop", _PROMPT))
    return prompt if is_proved else None


def _constant_if_prompted(tail: nodes.Node | None) -> str | None:
    """Return the text of an {% if add_generation_prompt %}, '' where there is none; None if it is anything else."""
    if tail is None:
        return ""
    if not isinstance(tail, nodes.If) or not _is_name(tail.test, _PROMPT) or tail.elif_ or tail.else_:
        return None
    outputs = [part for node in tail.body for part in getattr(node, "nodes", [node])]
    try:
        return "".join(str(part.as_const()) for part in outputs)
    except (nodes.Impossible, AttributeError):
        return None


def _is_dead(node: nodes.Node) -> bool:
    """Return whether it is an {% if not add_generation_prompt is defined %}: the prompt always is defined."""
    if not isinstance(node, nodes.If) or node.elif_ or node.else_ or not isinstance(node.test, nodes.Not):
        return False
    asked = node.test.node
    return isinstance(asked, nodes.Test) and asked.name == "defined" and _is_name(asked.node, _PROMPT)


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name
