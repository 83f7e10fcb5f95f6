"""What kernels share does in compiled code what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tfrecord_io.codec import kernels

DATA = np.random.default_rng(0).integers(0, 256, 40, dtype=np.uint8)


@pytest.mark.parametrize("bit", range(64))
def test_the_lowest_bit_is_found_whatever_is_above_it(bit: int) -> None:
    for above in (0, 1 << 63, (1 << 64) - (1 << bit)):
        assert kernels.lowest_bit(np.uint64(1 << bit | above)) == bit


@pytest.mark.parametrize("position", [0, 1, 7, 32])
def test_words_are_little_endian_wherever_they_lie(position: int) -> None:
    assert int(kernels.load(DATA, position)).to_bytes(8, "little") == DATA[position : position + 8].tobytes()
    assert int(kernels.load_4(DATA, position)).to_bytes(4, "little") == DATA[position : position + 4].tobytes()


@pytest.mark.parametrize("position", [0, 1, 7, 32])
def test_storing_changes_the_words_own_bytes_only(position: int) -> None:
    for store, dtype in ((kernels.store, np.uint64), (kernels.store_4, np.uint32)):
        out, word = DATA.copy(), dtype(0x8877665544332211 & np.iinfo(dtype).max)
        store(out, position, word)
        expected = DATA.tobytes()[:position] + word.tobytes() + DATA.tobytes()[position + word.nbytes :]
        assert out.tobytes() == expected


@pytest.mark.parametrize("size", [0, 1, 31, 32, 39])
def test_copying_changes_the_copied_bytes_only(size: int) -> None:
    out = np.zeros(40, np.uint8)
    kernels.copy(out, 1, DATA, 0, size)
    assert out.tobytes() == b"\0" + DATA.tobytes()[:size] + bytes(39 - size)
