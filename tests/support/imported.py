"""The modules that a fresh process imports."""

import json
import sys

from tests.support import processes

_LIST = "\nimport json, sys; print('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"


def imported_by(program: str, *arguments: object) -> set[str]:
    (modules,) = imported_in_turn([program], *arguments)
    return modules


def imported_in_turn(programs: list[str], *arguments: object) -> list[set[str]]:
    """As `imported_by`, after each of several programs that one fresh process runs one after another."""
    command = [sys.executable, "-c", _LIST.join([*programs, ""]), *map(str, arguments)]
    ended = processes.run(command)
    assert ended.returncode == 0, ended.stderr
    listings = [set(json.loads(line)) for line in ended.stdout.splitlines() if line.startswith('["')]
    assert len(listings) == len(programs)
    return listings
