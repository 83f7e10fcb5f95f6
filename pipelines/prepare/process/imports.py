"""Import Arrow and Numba without optional packages."""

import contextlib
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Within the context, let this thread's imports of these modules fail as if they were not installed."""
    thread = threading.get_ident()

    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in names and threading.get_ident() == thread:
            raise ModuleNotFoundError(name, name=name)

    # A None in `sys.modules` would not do: Cython's `import` returns it.
    finder: Any = types.SimpleNamespace(find_spec=find_spec)
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(hidden)


def start_numba() -> None:
    """Start Numba without awkward and SciPy, which it would import for its first kernel (0.27 s, 36 MB)."""
    warnings.filterwarnings("ignore", message="Numba extension module 'awkward")
    with without(*(name for name in ("awkward", "scipy") if name not in sys.modules)):
        from tfrecord_io.codec import kernels

        kernels.lowest_bit(np.uint64(1))


def start_worker() -> None:
    """Start Numba and Arrow in a worker that runs no user code. Arrow then treats pandas objects as plain sequences."""
    import pyarrow as pa

    start_numba()
    with without("pandas"):  # pyarrow would import it for its first array (0.15 s of CPU time, 35 MB)
        pa.array([0])
        pa.array(pa.array([0]).to_numpy())
