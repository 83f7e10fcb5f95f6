"""Random numbers that depend only on (seed, split, row).

The generator is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
`numpy.random.default_rng` would take 20 times as long: each row needs a generator.
"""

import zlib

import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(values: np.ndarray) -> np.ndarray:
    """Apply the mixing function of SplitMix64 to each uint64 value."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _FACTORS[0]
        values = (values ^ (values >> np.uint64(27))) * _FACTORS[1]
    return np.asarray(values ^ (values >> np.uint64(31)))


def row_draws(seed: int, *, split: str, numbers: np.ndarray, count: int) -> np.ndarray:
    """Return `count` random numbers for each row, uniform in [0, 1), float64 [N, count]. `numbers`: the row numbers."""
    with np.errstate(over="ignore"):
        key = mixed(mixed(np.array(seed % 2**64, np.uint64)) ^ np.uint64(zlib.crc32(split.encode())))
        states = mixed(key + (numbers.astype(np.uint64) + np.uint64(1)) * GAMMA)
        drawn = mixed(states[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GAMMA)
    return np.asarray((drawn >> np.uint64(11)) * 2.0**-53)
