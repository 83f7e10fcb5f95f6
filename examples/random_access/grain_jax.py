"""Trains a small model on a prepared dataset with Grain and JAX, without TensorFlow.

    pip install grain jax optax
    python examples/reviews/train_tokenizer.py out/tokenizers/reviews
    prep-tfrecords build examples/reviews --tokenizer out/tokenizers/reviews --max-length 64 --output out/reviews
    python examples/random_access/grain_jax.py out/reviews

Each step hides tokens of a batch (masked LM), and the model predicts them from the mean of what surrounds them. Grain
reads a batch at a time (`rows.batch`), in an order and with hidden tokens that follow from the seed alone.
"""

from __future__ import annotations

import argparse
from typing import Any

import grain
import jax
import jax.numpy as jnp
import optax

from tfrecord_io import objectives, random_access

WIDTH = 64


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


def init(key: jax.Array, vocab_size: int) -> dict[str, jax.Array]:
    """The parameters: an embedding of each token, a mixing of its neighbourhood, and the output's bias."""
    embed, mix = jax.random.split(key)
    return {
        "embed": 0.1 * jax.random.normal(embed, (vocab_size, WIDTH)),
        "mix": jax.random.normal(mix, (2 * WIDTH, WIDTH)) / WIDTH**0.5,
        "bias": jnp.zeros(vocab_size),
    }


def loss(
    params: dict[str, jax.Array], inputs: dict[str, jax.Array], labels: jax.Array, weights: jax.Array
) -> jax.Array:
    """Cross-entropy of the hidden tokens, in the mean."""
    tokens_BLD = params["embed"][inputs["input_ids"]] * inputs["attention_mask"][..., None]
    around_BLD = jnp.broadcast_to(tokens_BLD.mean(axis=1, keepdims=True), tokens_BLD.shape)
    hidden_BLD = jnp.tanh(jnp.concatenate([tokens_BLD, around_BLD], axis=-1) @ params["mix"])
    logits_BLV = hidden_BLD @ params["embed"].T + params["bias"]
    losses_BL = optax.softmax_cross_entropy_with_integer_labels(logits_BLV, labels)
    return (losses_BL * weights).sum() / jnp.maximum(weights.sum(), 1)


def train(root: str, *, steps: int, batch_size: int = 32, seed: int = 0) -> list[float]:
    """The loss of each step."""
    vocab_size = random_access.open(root).manifest.tokenizer.vocab_size
    params, optimizer = init(jax.random.key(seed), vocab_size), optax.adam(1e-2)

    @jax.jit
    def step(params: Any, state: Any, inputs: Any, labels: Any, weights: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, inputs, labels, weights)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimizer.init(params), []
    for _, batch in zip(range(steps), batches(root, batch_size=batch_size, seed=seed), strict=False):
        params, state, value = step(params, state, *batch)
        losses.append(float(value))
    return losses


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
