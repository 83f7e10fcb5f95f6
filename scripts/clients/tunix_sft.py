"""Train with tunix's PeftTrainer on masked rows, and compare its losses with plain functions.

The plain functions use our causal objective for labels and weights.
"""

from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from tunix.sft import hooks, peft_trainer

from scripts.clients.expected import WORK
from tfrecord_io import objectives, random_access

STEPS, RATE, WIDTH = 10, 1e-2, 16
DATA = random_access.open(f"{WORK}/pad")
BATCHES = random_access.global_batches(DATA["train"], global_batch_size=32, seed=3)


class Model(nnx.Module):
    """Model that predicts the next token from the current one, called like tunix's models."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(DATA.manifest.tokenizer.vocab_size, WIDTH, rngs=rngs)
        self.dense = nnx.Linear(WIDTH, DATA.manifest.tokenizer.vocab_size, rngs=rngs)

    def __call__(self, ids_BL: Any, positions: Any, cache: Any, attention_mask: Any) -> tuple[Any, None]:
        del positions, cache, attention_mask
        return self.dense(self.embedding(ids_BL)), None


class Losses(hooks.TrainingHooks):
    """Hooks of tunix's trainer that record the loss of each step."""

    def __init__(self) -> None:
        self.recorded: list[float] = []

    def on_train_step_end(self, trainer: Any, step: int, loss: Any) -> None:
        self.recorded.append(float(loss))

    def _ignore(self, *_: Any) -> None:
        pass

    on_train_start = on_train_end = on_train_step_start = on_eval_step_start = on_eval_step_end = _ignore


def tunix_losses(model: Model) -> list[float]:
    """Train with tunix's PeftTrainer, and return the loss of each step."""
    config = peft_trainer.TrainingConfig(eval_every_n_steps=10**6, max_steps=STEPS, data_sharding_axis=())
    trainer, losses = peft_trainer.PeftTrainer(model, optax.adamw(RATE, weight_decay=0.1), config), Losses()
    trainer.with_training_hooks(losses)
    unused = dict.fromkeys(("positions", "attention_mask"))
    trainer.with_gen_model_input_fn(
        lambda batch: {"input_tokens": batch.input_tokens, "input_mask": batch.input_mask, **unused}
    )
    rows = [(batch["input_ids"], batch["attention_mask"]) for batch in (BATCHES[step] for step in range(STEPS))]
    trainer.train([peft_trainer.TrainingInput(input_tokens=ids, input_mask=mask) for ids, mask in rows])
    return losses.recorded


def loss_of(weights: list[Any], inputs: dict[str, Any], labels: Any, learned: Any) -> Any:
    """Return the mean cross-entropy of the model with these `weights` on the tokens where `learned` is 1."""
    embeddings, kernel, bias = weights
    logits = embeddings[inputs["input_ids"]] @ kernel + bias
    return (optax.softmax_cross_entropy_with_integer_labels(logits, labels) * learned).sum() / learned.sum()


def plain_losses(weights: Any, batches: list[Any]) -> list[float]:
    """Train with `jax` and `optax` alone, and return the loss of each step."""
    optimizer, losses = optax.adamw(RATE, weight_decay=0.1), []
    state = optimizer.init(weights)
    for batch in batches:
        loss, gradients = jax.value_and_grad(loss_of)(weights, *batch)
        changes, state = optimizer.update(gradients, state, weights)
        weights = optax.apply_updates(weights, changes)
        losses.append(float(loss))
    return losses


model = Model(nnx.Rngs(0))
variables: Any = (model.embedding.embedding, model.dense.kernel, model.dense.bias)
first = [jax.numpy.array(variable[...]) for variable in variables]
objective = objectives.causal_lm().bind(DATA.manifest)
reference = [objective(BATCHES[step], rng=np.random.default_rng(0)) for step in range(STEPS)]
ours, expected = tunix_losses(model), plain_losses(first, reference)
apart = float(np.abs(np.subtract(ours, expected)).max())
assert len(ours) == STEPS, ours
assert apart < 1e-5, (ours, expected)
assert ours[-1] < ours[0]
print(f"{STEPS} losses {apart:.1e} apart, {ours[0]:.3f} to {ours[-1]:.3f}")
