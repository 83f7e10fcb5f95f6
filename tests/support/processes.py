"""What processes that a test starts need. It imports nothing of ours: most of what starting a small one would take."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}
