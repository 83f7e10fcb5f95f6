"""Tests share helpers through `tests.support`, and replace only public seams of the product."""

import ast
from collections.abc import Iterator

from tests.building import REPOSITORY
from tests.support import seams
from tests.support.sources import modules

# Looks at the cases of two others, to find out whether they cover a table.
_ABOUT_TESTS = "tests/project/test_one_place.py"
_MOST_REPLACED = 80


def _replaced() -> Iterator[tuple[str, str]]:
    """Yield (place, attribute) of each call of `setattr` of a MonkeyPatch, except that of `seams`."""
    for name, module in modules("tests").items():
        for node in ast.walk(module) if name != "tests/support/seams.py" else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
                attribute = node.args[1] if len(node.args) > 2 else node.args[0]
                text = attribute.value if isinstance(attribute, ast.Constant) else ""
                yield f"{name}:{node.lineno}", str(text).rpartition(".")[2]


def test_no_test_module_imports_another() -> None:
    imported = []
    for name, module in modules("tests").items():
        for node in ast.walk(module):
            parts = [node.module, *(alias.name for alias in node.names)] if isinstance(node, ast.ImportFrom) else []
            last = [str(part).rpartition(".")[2] for part in parts if str(parts[0]).startswith("tests")]
            imported += [f"{name}: {part}" for part in last if part.startswith("test_") and name != _ABOUT_TESTS]
    assert imported == []


def test_what_tests_replace_is_public_and_little() -> None:
    replaced = [*_replaced()]
    assert [place for place, attribute in replaced if attribute.startswith("_")] == []
    assert len(replaced) <= _MOST_REPLACED


def test_each_seam_is_used() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("*.py"))
    assert [name for name in seams.SEAMS if f"{name}=" not in text] == []
