"""Only tests/support/limits.py has time limits of tests, since a number elsewhere fits one machine on one day."""

import ast

import pytest

from tests.support.sources import modules

# Calls with a limit as first argument. A shorter pause, or step of a loop that looks again, is none.
WAITS = {"join", "settimeout", "timeout", "Timer", "wait"}
LEAST = {"sleep": 10, "wait": 1}


def is_number(node: ast.AST) -> bool:
    numbers = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(
        isinstance(part, numbers) or (isinstance(part, ast.Constant) and isinstance(part.value, int | float))
        for part in ast.walk(node)
    )


def limits_in(module: ast.Module) -> list[int]:
    lines = []
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0] if node.args and name in {*WAITS, "sleep"} and is_number(node.args[0]) else None
            is_limit = first is not None and (name not in LEAST or ast.literal_eval(first) >= LEAST[name])
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
