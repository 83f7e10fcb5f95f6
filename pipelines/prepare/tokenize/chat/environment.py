"""Jinja environment for chat templates, with the settings of `transformers` 5.23.

`transformers` is not used, because it writes today's date and does not report the masked characters.
"""

import contextlib
import datetime
import json
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from pipelines.prepare.tokenize.chat.conversation import DATE_UNKNOWN, Rejected
from pipelines.prepare.tokenize.chat.fixed_values import Cycler, difference, fixed, fixed_result, format_date

Spans = list[tuple[int, int]]

_METHODS = frozenset(dir(dict))
# Filters. Because of the parentheses, no template can use their names.
_TAKE, _LEAVE = "(take)", "(leave)"


class Notes(Extension):
    """Jinja extension that records where {% generation %} blocks and a loop's items are in the written text.

    `spans`: byte spans of the blocks. `items`: for each item of an outer loop, `id(item)` and the number of bytes
    before it. The end of a loop has the id 0. `is_used`: whether the template has such blocks.
    """

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it
    is_used = False

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        environment.filters |= {_TAKE: self._take, _LEAVE: self._leave}

    def start(self) -> None:
        """Begin a rendering. The renderer must update `num_written`, the number of bytes written so far."""
        self.num_written = 0
        self.spans: Spans = []
        self.items: list[tuple[int, int]] = []

    def watch(self, tree: nodes.Template) -> nodes.Template:
        """Change a template's syntax tree so that outer loops record their items. Return the same tree."""
        self._watch(tree.body)
        tree.set_environment(self.environment)
        return tree

    def _watch(self, body: list[nodes.Node]) -> None:
        # Loops in macros and in {% set %}, {% filter %} and {% generation %} blocks write their text later.
        for at, node in reversed(list(enumerate(body))):
            if isinstance(node, nodes.For) and isinstance(node.target, nodes.Name):
                node.body.insert(0, self._noting(_TAKE, node.target.name, node.lineno))
                body.insert(at + 1, self._noting(_LEAVE, "messages", node.lineno))
            elif isinstance(node, nodes.If):
                for branch in (node.body, node.else_, *(elif_node.body for elif_node in node.elif_)):
                    self._watch(branch)

    def _noting(self, filter_name: str, name: str, line: int) -> nodes.Node:
        # A filter takes a tenth of a function call's time, because the sandbox checks calls.
        value = nodes.Name(name, "load")
        return nodes.ExprStmt(nodes.Filter(value, filter_name, [], [], None, None)).set_lineno(line)

    def _take(self, item: Any) -> None:
        self.items.append((id(item), self.num_written))

    def _leave(self, messages: Any) -> None:
        del messages
        self.items.append((0, self.num_written))

    def parse(self, parser: Parser) -> nodes.CallBlock:
        """Parse a {% generation %} block. Jinja calls this method at the tag."""
        self.is_used = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_note"), [], [], body)
        block.set_lineno(line)
        return block

    @pass_eval_context
    def _note(self, context: nodes.EvalContext, caller: Any) -> str:
        del context
        text: str = caller()
        self.spans.append((self.num_written, self.num_written + len(text.encode())))
        return text


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"-"})

    # Jinja tries attributes before keys, which doubles the time of `message.content`. Its safety check takes 1 µs. The
    # only unsafe attributes of texts, loops and namespaces are `_FORMATS` and those with a leading underscore.
    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute in obj and attribute not in _METHODS:
                return obj[attribute]
        elif kind in _HARMLESS and attribute[:1] != "_" and attribute not in _FORMATS:
            with contextlib.suppress(AttributeError):
                return fixed(getattr(obj, attribute))
        return fixed(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is dict and type(argument) is str and argument in obj:
            return obj[argument]
        return fixed(super().getitem(obj, argument))


class _Namespace(Namespace):
    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *mappings = args
        Namespace.__init__(self)
        for name, value in dict(*mappings, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a name in a namespace must not begin with an underscore, found {name!r}")
        super().__setitem__(name, value)


_FORMATS = ("format", "format_map")
_HARMLESS = (str, LoopContext, _Namespace)


def create_environment(date: str | None = None) -> ImmutableSandboxedEnvironment:
    """Create the Jinja environment for a chat template. `date` (ISO): today's date in it; None to reject its use."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Notes, loopcontrols])

    def strftime_now(form: str) -> str:
        if date is None:
            raise Rejected(DATE_UNKNOWN)
        return format_date(datetime.date.fromisoformat(date), form)

    # A template cannot change messages with the methods of `dict`, because `fixed` hides them.
    functions = {"raise_exception": _refuse, "strftime_now": strftime_now, "namespace": _Namespace, "cycler": Cycler}
    environment.globals = {name: fixed(value) for name, value in {**environment.globals, **functions}.items()}
    filters = {**environment.filters, "tojson": _to_json}
    environment.filters |= {name: fixed_result(call) for name, call in filters.items() if name not in (_TAKE, _LEAVE)}
    environment.binop_table["-"] = difference
    # `lipsum` and `random` vary, and `pprint` may sort by memory addresses.
    del environment.globals["lipsum"], environment.filters["random"], environment.filters["pprint"]
    return environment


def syntax_error(source: str) -> str | None:
    """Return the syntax error of a template's source, with its line number; None if it has none."""
    try:
        create_environment().parse(source)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    return None


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
