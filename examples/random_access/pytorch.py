"""Trains a small language model on a prepared dataset with PyTorch's DataLoader, without TensorFlow.

    pip install torch
    python examples/reviews/train_tokenizer.py out/tokenizers/reviews
    prep-tfrecords build examples/reviews --tokenizer out/tokenizers/reviews --max-length 64 --output out/reviews
    python examples/random_access/pytorch.py out/reviews

The rows of a split are a map-style dataset as they are: the loader asks for a batch of them at a time
(`__getitems__`), in its worker processes. What it collates is made ready for the loss there too, by an objective.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from tfrecord_io import objectives, random_access

WIDTH = 64


class Collate:
    """Stacks rows and applies the objective: a class, so that workers of any start method can be given it."""

    def __init__(self, objective: objectives.BoundObjective) -> None:
        self._objective = objective

    def __call__(self, rows: Sequence[dict[str, np.ndarray]]) -> Any:
        inputs, labels, weights = self._objective({name: np.stack([row[name] for row in rows]) for name in rows[0]})
        return {name: torch.from_numpy(values) for name, values in inputs.items()}, *map(
            torch.from_numpy, (labels, weights)
        )


class Model(torch.nn.Module):
    """Predicts the next token from those before it, by a recurrent layer."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocab_size, WIDTH)
        self.layer = torch.nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, vocab_size)

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(ids_BL))[0])


def loader(root: str, *, batch_size: int, seed: int, workers: int) -> DataLoader:
    """One epoch of (inputs, labels, weights), in an order that follows from the seed."""
    rows = random_access.open(root)["train"]
    return DataLoader(
        rows,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        collate_fn=Collate(objectives.causal_lm().bind(rows.manifest)),
        generator=torch.Generator().manual_seed(seed),
    )


def train(root: str, *, epochs: int, batch_size: int = 32, seed: int = 0, workers: int = 2) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(seed)
    model = Model(random_access.open(root).manifest.tokenizer.vocab_size)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    batches = loader(root, batch_size=batch_size, seed=seed, workers=workers)
    for _ in range(epochs):
        for inputs, labels_BL, weights_BL in batches:
            logits_BLV = model(inputs["input_ids"])
            losses_BL = torch.nn.functional.cross_entropy(logits_BLV.transpose(1, 2), labels_BL, reduction="none")
            value = (losses_BL * weights_BL).sum() / weights_BL.sum().clamp(min=1)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(value.item())
    return losses


def main() -> None:
    """Prints the loss now and then."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", help="the folder of a dataset")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="processes that read; default %(default)s")
    options = parser.parse_args()
    losses = train(options.root, epochs=options.epochs, workers=options.workers)
    for number, value in enumerate(losses):
        if number % 10 == 0 or number == len(losses) - 1:
            print(f"step {number:4d}   loss {value:.3f}")


if __name__ == "__main__":
    main()
