"""Compare a Flax NNX loop with optax over our batches with plain functions and the optimizer of `train-tpu`.

The loop takes `random_access.global_batches`; the reference takes the rows of each batch by `indices` from all rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from scripts.clients.expected import WORK, adamw_losses, rows
from tfrecord_io import random_access

STEPS, RATE, WIDTH = 20, 1e-2, 16
DATA = random_access.open(f"{WORK}/pad")
BATCHES = random_access.global_batches(DATA["train"], global_batch_size=32, seed=3)


class Model(nnx.Module):
    """The mean of the tokens' embeddings, to two classes."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(DATA.manifest.tokenizer.vocab_size, WIDTH, rngs=rngs)
        self.dense = nnx.Linear(WIDTH, 2, rngs=rngs)

    def __call__(self, ids_BL: Any, mask_BL: Any) -> Any:
        states_BLD = self.embedding(ids_BL) * mask_BL[..., None]
        return self.dense(states_BLD.sum(1) / mask_BL.sum(1, keepdims=True))


def loss(logits_BC: Any, labels_B: Any) -> Any:
    """Return the mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits_BC, labels_B).mean()


def flax_losses(model: Model) -> list[float]:
    """Train by NNX and optax."""
    optimizer = nnx.Optimizer(model, optax.adamw(RATE, weight_decay=0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model: Model, optimizer: nnx.Optimizer, ids: Any, mask: Any, labels: Any) -> Any:
        value, gradients = nnx.value_and_grad(lambda each: loss(each(ids, mask), labels))(model)
        optimizer.update(model, gradients)
        return value

    batches = (BATCHES[at] for at in range(STEPS))
    return [float(step(model, optimizer, *(each[n] for n in NAMES))) for each in batches]


def loss_of(weights: list[Any], ids: Any, mask: Any, labels: Any) -> Any:
    """Return the model's loss by plain functions."""
    embeddings, kernel, bias = weights
    states = jnp.einsum("blv,vd,bl->bd", jax.nn.one_hot(ids, len(embeddings)), embeddings, mask.astype("float32"))
    return loss(states / mask.sum(1, keepdims=True) @ kernel + bias, labels)


NAMES = ("input_ids", "attention_mask", "label")
model = Model(nnx.Rngs(0))
variables: Any = (model.embedding.embedding, model.dense.kernel, model.dense.bias)
first = [jnp.array(each[...]) for each in variables]
every, chosen = rows("pad"), [np.asarray(BATCHES.indices(step)) for step in range(STEPS)]
reference = [[every[name][numbers] for name in NAMES] for numbers in chosen]
ours, expected = flax_losses(model), adamw_losses(loss_of, first, reference, rate=RATE)
apart = float(np.abs(np.subtract(ours, expected)).max())
assert apart < 1e-5, (ours, expected)
assert ours[-1] < ours[0]
print(f"{STEPS} losses {apart:.1e} apart, {ours[0]:.3f} to {ours[-1]:.3f}")
