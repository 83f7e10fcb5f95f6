"""What processes that a test starts need. It imports nothing of ours: most of what starting a small one would take."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import limits

REPOSITORY = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def run(
    words: Sequence[object], *, env: Mapping[str, str] | None = None, **changes: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in `environment()` without another one."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": limits.PROCESS, **changes}
    return subprocess.run([*map(str, words)], env=env or environment(), **options)
