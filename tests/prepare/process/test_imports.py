"""Pandas stays out of a process until somebody wants it."""

from __future__ import annotations

import subprocess
import sys

from tests import building

_PROGRAM = """
import sys
from pipelines.prepare.process import imports
imports.keep_pandas_out()
import numpy as np, pyarrow as pa
pa.array(np.zeros(2)), pa.array(["a"]), pa.table({"a": [1]}).column("a").to_numpy()
assert "pandas" not in sys.modules
import pandas
assert len(pa.table({"a": [1]}).to_pandas()) == 1
"""


def test_pyarrow_imports_no_pandas_unless_somebody_wants_it() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], env=building.environment(), check=True)
