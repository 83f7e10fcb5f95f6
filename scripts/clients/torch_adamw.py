"""The optimizer's rule in `train-tpu` against `torch.optim.AdamW`: 20 steps, gradients of 1 to 1e-9."""

import numpy as np
import torch

from pipelines.train.steps import AdamW

SHAPES, DECAYED = ((3, 4), (2, 5)), (True, False)
draws = np.random.default_rng(0)
weights = [draws.normal(size=shape).astype("float32") for shape in SHAPES]
theirs = [torch.nn.Parameter(torch.from_numpy(each.copy())) for each in weights]
groups = [{"params": [each], "weight_decay": 0.1 * decays} for each, decays in zip(theirs, DECAYED, strict=True)]
reference = torch.optim.AdamW(groups, lr=0.01)
rule = AdamW(rate=0.01, warmup=0, steps=20, decay=0.1, decayed=DECAYED, clip_norm=1e9, schedule="constant")
means, squares = ([np.zeros_like(each) for each in weights] for _ in range(2))
apart = 0.0
for step in range(20):
    gradients = [(draws.normal(size=shape) * 10.0 ** -(step % 10)).astype("float32") for shape in SHAPES]
    for each, gradient in zip(theirs, gradients, strict=True):
        each.grad = torch.from_numpy(gradient.copy())
    reference.step()
    weights, means, squares = rule.update(step, weights, gradients, means, squares)
    pairs = zip(weights, theirs, strict=True)
    apart = max(apart, *(float(np.abs(np.asarray(own) - each.detach().numpy()).max()) for own, each in pairs))
assert apart < 1e-6, apart
print(f"torch.optim.AdamW: weights {apart:.1e} apart after each of 20 steps")
