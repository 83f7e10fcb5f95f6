"""Optional libraries stay out of a worker process, and of a build, until somebody wants them."""

from __future__ import annotations

import subprocess
import sys

from tests import building

_PROGRAM = """
import sys
from pipelines.prepare.process import imports
imports.start_worker()
import numpy as np, pyarrow as pa
from tfrecord_io.codec import kernels
pa.array(np.zeros(2)), pa.array(["a"]), pa.table({"a": [1]}).column("a").to_numpy()
assert kernels.lowest_bit(np.uint64(8)) == 3
assert not {"awkward", "pandas", "scipy"} & {*sys.modules}
import awkward, pandas, scipy
assert len(pa.table({"a": [1]}).to_pandas()) == 1
"""


def test_arrow_and_numba_import_nothing_optional_unless_somebody_wants_it() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", _PROGRAM], env=building.environment(), check=True)
