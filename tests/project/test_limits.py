"""Only tests/support/limits.py has time limits of tests, since a number elsewhere fits one machine on one day."""

import ast

import pytest

from tests.support.sources import modules

# Calls with a limit as first argument, and the minimum seconds of a pause.
WAITS = {"join", "settimeout", "timeout", "Timer", "wait"}
LONG_PAUSE = 10


def is_number(node: ast.AST) -> bool:
    """Whether an expression is of numbers alone: 240, 2 * 60."""
    numbers = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(
        isinstance(part, numbers) or (isinstance(part, ast.Constant) and isinstance(part.value, int | float))
        for part in ast.walk(node)
    )


def limits_in(module: ast.Module) -> list[int]:
    """The lines of a module that state a time limit as a number."""
    lines = []
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            numbers = [argument for argument in node.args[:1] if is_number(argument)]
            is_limit = bool(numbers) and (
                name in WAITS or (name == "sleep" and ast.literal_eval(numbers[0]) >= LONG_PAUSE)
            )
            # A step of a loop that looks again is no limit: wait(0.05).
            if is_limit and name == "wait" and ast.literal_eval(numbers[0]) < 1:
                is_limit = False
            if is_limit or any(word.arg in ("timeout", "deadline") and is_number(word.value) for word in node.keywords):
                lines.append(node.lineno)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and is_number(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if any(name == "timeout" or name.endswith("SECONDS") for name in names):
                lines.append(node.lineno)
    return sorted(lines)


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run(words, timeout=240)",
        "process.communicate(timeout=2 * 60)",
        "process.wait(60)",
        "thread.join(60)",
        "threading.Timer(90, process.kill)",
        "connection.settimeout(30)",
        "time.sleep(100)",
        "settings(deadline=5)",
        "@pytest.mark.timeout(900)\ndef test(): ...",
        "_SECONDS = 120",
    ],
)
def test_a_limit_as_a_number_is_seen(line: str) -> None:
    assert limits_in(ast.parse(line)) == [1]


def test_no_test_has_a_limit_of_its_own() -> None:
    others = {path: module for path, module in modules("tests").items() if path != "tests/support/limits.py"}
    assert [f"{path}:{line}" for path, module in others.items() for line in limits_in(module)] == []
