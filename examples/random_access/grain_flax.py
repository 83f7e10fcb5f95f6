"""Trains a small transformer on a prepared dataset with Grain and Flax, without TensorFlow.

    pip install grain flax
    python examples/reviews/train_tokenizer.py out/tokenizers/reviews
    prep-tfrecords build examples/reviews --tokenizer out/tokenizers/reviews --max-length 64 --output out/reviews
    python examples/random_access/grain_flax.py out/reviews

Each step hides tokens of a batch (masked LM), and the model predicts them. Grain reads a batch at a time
(`rows.batch`), in an order and with hidden tokens that follow from the seed alone.
"""

from __future__ import annotations

import argparse
from typing import Any

import grain
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tfrecord_io import objectives, random_access
from tfrecord_io.manifest import Manifest

WIDTH, HEADS = 64, 4


def batches(root: str, *, batch_size: int, seed: int) -> Any:
    """An endless iterator of (inputs, labels, weights)."""
    rows = random_access.open(root)["train"]
    objective = objectives.masked_lm().bind(rows.manifest)
    return (
        grain.MapDataset.range(len(rows))
        .seed(seed)
        .shuffle()
        .repeat()
        .batch(batch_size, drop_remainder=True)
        .map(rows.batch)
        .random_map(objective.with_rng)
        .to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=8))
    )


class Model(nnx.Module):
    """One layer of attention over the tokens that are no padding, and the logits of every token."""

    def __init__(self, manifest: Manifest, *, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(manifest.tokenizer.vocab_size, WIDTH, rngs=rngs)
        self.places = nnx.Embed(manifest.row_length, WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=HEADS, in_features=WIDTH, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.dense = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, ids_BL: jax.Array, mask_BL: jax.Array) -> jax.Array:
        states_BLD = self.tokens(ids_BL) + self.places(jnp.arange(ids_BL.shape[1]))
        mask_BHLL = nnx.make_attention_mask(mask_BL, mask_BL)
        states_BLD = self.norm(states_BLD + self.attention(states_BLD, mask=mask_BHLL))
        return self.tokens.attend(nnx.gelu(self.dense(states_BLD)))


def loss(model: Model, inputs: dict[str, jax.Array], labels_BL: jax.Array, weights_BL: jax.Array) -> jax.Array:
    """Cross-entropy of the hidden tokens, in the mean."""
    logits_BLV = model(inputs["input_ids"], inputs["attention_mask"])
    losses_BL = optax.softmax_cross_entropy_with_integer_labels(logits_BLV, labels_BL)
    return (losses_BL * weights_BL).sum() / jnp.maximum(weights_BL.sum(), 1)


@nnx.jit
def step(model: Model, optimizer: nnx.Optimizer, inputs: Any, labels: Any, weights: Any) -> jax.Array:
    """Take one step of the optimizer; the loss before it."""
    value, gradients = nnx.value_and_grad(loss)(model, inputs, labels, weights)
    optimizer.update(model, gradients)
    return value


def train(root: str, *, steps: int, batch_size: int = 32, seed: int = 0) -> list[float]:
    """The loss of each step."""
    model = Model(random_access.open(root).manifest, rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    found = zip(range(steps), batches(root, batch_size=batch_size, seed=seed), strict=False)
    return [float(step(model, optimizer, *batch)) for _, batch in found]


def main() -> None:
    """Prints the loss now and then."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", help="the folder of a dataset")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    for number, value in enumerate(train(options.root, steps=options.steps)):
        if number % 10 == 0 or number == options.steps - 1:
            print(f"step {number:4d}   loss {value:.3f}")


if __name__ == "__main__":
    main()
