"""What kernels share does in compiled code what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tfrecord_io.codec import kernels


@pytest.mark.parametrize("bit", range(64))
def test_the_lowest_bit_is_found_whatever_is_above_it(bit: int) -> None:
    for above in (0, 1 << 63, (1 << 64) - (1 << bit)):
        assert kernels.lowest_bit(np.uint64(1 << bit | above)) == bit
