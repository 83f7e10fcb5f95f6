"""Import Arrow and Numba without optional packages."""

import sys
import threading
import warnings

import numpy as np


class _Without:
    def __init__(self, *names: str) -> None:
        self._names, self._thread = names, threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._names and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(name, name=name)

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)


def keep_pandas_out() -> None:
    """Hide pandas from pyarrow, which would import it for its first array (0.15 s of CPU time, 35 MB).

    Afterwards, pyarrow treats pandas objects as plain sequences.
    """
    import pyarrow as pa

    with _Without("pandas"):
        pa.array([0])
        pa.array(pa.array([0]).to_numpy())


def start_numba() -> None:
    """Hide awkward and SciPy from Numba, which would import them for its first kernel (0.27 s, 36 MB).

    Only user functions could need them.
    """
    warnings.filterwarnings("ignore", message="Numba extension module 'awkward")
    with _Without("awkward", "scipy"):
        from tfrecord_io.codec import kernels

        kernels.lowest_bit(np.uint64(1))


def start_worker() -> None:
    """Start Arrow and Numba in a worker that runs no user code."""
    keep_pandas_out()
    start_numba()
