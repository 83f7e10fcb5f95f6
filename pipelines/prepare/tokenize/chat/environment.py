"""Jinja environment of chat templates, with the settings of `transformers` 5.23. Tests compare its texts and masks.

`transformers` itself renders today's date, and gives no masks of characters.
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
from pipelines.prepare.tokenize.chat.fixed_values import Cycler, Dict, difference, fixed, fixed_result, format_date

Spans = list[tuple[int, int]]

_METHODS = frozenset(dir(dict))
# No template can write these filters' names.
_TAKE, _LEAVE = "(take)", "(leave)"


class Notes(Extension):
    """Jinja extension that records where {% generation %} blocks and items of outer loops are in the text.

    `spans`: bytes of the blocks. `items`: the id of each item that an outer loop takes (0 at its end), and the number
    of bytes before it.
    """

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it
    is_used = False

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        environment.filters |= {_TAKE: self._take, _LEAVE: self._leave}

    def start(self) -> None:
        """Begin a rendering. The caller keeps `num_written` at the number of bytes rendered."""
        self.num_written = 0
        self.spans: Spans = []
        self.items: list[tuple[int, int]] = []

    def watch(self, tree: nodes.Template) -> nodes.Template:
        """Make a template's outer loops record their items. Return the changed tree."""
        self._watch(tree.body)
        tree.set_environment(self.environment)
        return tree

    def _watch(self, body: list[nodes.Node]) -> None:
        # In macros and {% set %}, {% filter %} and {% generation %} blocks, text is written later.
        for at, node in reversed(list(enumerate(body))):
            if isinstance(node, nodes.For) and isinstance(node.target, nodes.Name):
                node.body.insert(0, self._noting(_TAKE, node.target.name, node.lineno))
                body.insert(at + 1, self._noting(_LEAVE, "messages", node.lineno))
            elif isinstance(node, nodes.If):
                for branch in (node.body, node.else_, *(each.body for each in node.elif_)):
                    self._watch(branch)

    def _noting(self, filter_name: str, name: str, line: int) -> nodes.Node:
        # A filter call takes a tenth of the time of a checked call.
        value = nodes.Name(name, "load")
        return nodes.ExprStmt(nodes.Filter(value, filter_name, [], [], None, None)).set_lineno(line)

    def _take(self, item: Any) -> None:
        self.items.append((id(item), self.num_written))

    def _leave(self, messages: Any) -> None:
        del messages
        self.items.append((0, self.num_written))

    def parse(self, parser: Parser) -> nodes.CallBlock:
        """Parse a {% generation %} block. Jinja calls this."""
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
    """Jinja's sandbox, with fixed texts and shorter ways for frequent lookups.

    Jinja tries attributes before keys, which doubles the time of `message.content`. In texts, loops and namespaces,
    only `format` and names with an underscore are unsafe; each check takes 1 µs.
    """

    intercepted_binops = frozenset({"-"})

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
        self, *others = args
        Namespace.__init__(self)
        for name, value in dict(*others, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace takes no name that begins with an underscore, such as {name!r}")
        super().__setitem__(name, value)


_FORMATS = ("format", "format_map")
_HARMLESS = (str, LoopContext, _Namespace)


def create_environment(date: str | None = None) -> ImmutableSandboxedEnvironment:
    """Create an environment. `date` (ISO) is for `strftime_now`, which otherwise raises Rejected."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Notes, loopcontrols])

    def strftime_now(form: str) -> str:
        if date is None:
            raise Rejected(DATE_UNKNOWN)
        return format_date(datetime.date.fromisoformat(date), form)

    own = {"raise_exception": _refuse, "strftime_now": strftime_now, "dict": Dict(), "namespace": _Namespace}
    own["cycler"] = Cycler
    environment.globals = {name: fixed(value) for name, value in {**environment.globals, **own}.items()}
    filters = {**environment.filters, "tojson": _to_json}
    environment.filters |= {name: fixed_result(made) for name, made in filters.items() if name not in (_TAKE, _LEAVE)}
    environment.binop_table["-"] = difference
    # These give another text each time; `pprint` may sort by addresses.
    del environment.globals["lipsum"], environment.filters["random"], environment.filters["pprint"]
    return environment


def syntax_error(source: str) -> str | None:
    """Return a template's syntax error, with its line, or None."""
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
