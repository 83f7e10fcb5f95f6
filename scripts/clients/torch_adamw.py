"""Compare 20 steps of the optimizer of `train-tpu` with `torch.optim.AdamW`, on gradients of 1 to 1e-9.

Each runs in its own process, because PyTorch and TensorFlow cannot load their two copies of LLVM into one.
"""

import multiprocessing
from typing import Any

import numpy as np

SHAPES, DECAYED, STEPS = ((3, 4), (2, 5)), (True, False), 20
DRAWS = np.random.default_rng(0)
WEIGHTS = [DRAWS.normal(size=shape).astype("float32") for shape in SHAPES]
GRADIENTS = [
    [(DRAWS.normal(size=shape) * 10.0 ** -(step % 10)).astype("float32") for shape in SHAPES] for step in range(STEPS)
]


def by_torch() -> list[list[np.ndarray]]:
    """Return the weights after each step of PyTorch's optimizer."""
    import torch

    weights = [torch.nn.Parameter(torch.from_numpy(each.copy())) for each in WEIGHTS]
    groups = [{"params": [each], "weight_decay": 0.1 * decays} for each, decays in zip(weights, DECAYED, strict=True)]
    optimizer, found = torch.optim.AdamW(groups, lr=0.01), []
    for gradients in GRADIENTS:
        for each, gradient in zip(weights, gradients, strict=True):
            each.grad = torch.from_numpy(gradient)
        optimizer.step()
        found.append([each.detach().numpy().copy() for each in weights])
    return found


def by_us() -> list[list[np.ndarray]]:
    """Return the weights after each step of our optimizer."""
    from pipelines.train.steps import AdamW

    rule = AdamW(rate=0.01, warmup=0, steps=STEPS, decay=0.1, decayed=DECAYED, clip_norm=1e9, schedule="constant")
    weights: list[Any] = list(WEIGHTS)
    means, squares = ([np.zeros_like(each) for each in WEIGHTS] for _ in range(2))
    found = []
    for step, gradients in enumerate(GRADIENTS):
        weights, means, squares = rule.update(step, weights, gradients, means, squares)
        found.append([np.asarray(each) for each in weights])
    return found


def main() -> None:
    """Compare both."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        theirs, ours = pool.apply(by_torch), pool.apply(by_us)
    pairs = [pair for step in zip(ours, theirs, strict=True) for pair in zip(*step, strict=True)]
    apart = max(float(np.abs(own - their).max()) for own, their in pairs)
    assert apart < 1e-6, apart
    print(f"torch.optim.AdamW: weights {apart:.1e} apart after each of {STEPS} steps")


if __name__ == "__main__":
    main()
