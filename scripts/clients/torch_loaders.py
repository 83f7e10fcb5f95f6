"""Read rows with PyTorch's DataLoader (forked and spawned), StatefulDataLoader and torchtitan's loader."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtitan.components.dataloader import ParallelAwareDataloader

from scripts.clients.expected import WORK, require_same, rows
from tfrecord_io import random_access

DATA = random_access.open(f"{WORK}/concat")["train"]
BATCHES = random_access.global_batches(DATA, global_batch_size=8, seed=3)
STEPS, STOP = 12, 5


class Replica:
    """Sequence by step of one of two replicas' parts of the batches, as tensors by feature name."""

    def __init__(self, replica: int) -> None:
        self._replica = replica

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        part = BATCHES.part(step, replica=self._replica, replicas=2)
        return {name: torch.from_numpy(values) for name, values in part.items()}


def _ids(batches: Iterable[Any]) -> np.ndarray:
    return np.concatenate([batch["input_ids"] for batch in batches])


def _resumed(make: Callable[[], Any]) -> np.ndarray:
    """Read the first steps with one loader, go on with another from its state, and return the token ids of all."""
    first, second = make(), make()
    batches = iter(first)
    begun = [next(batches) for _ in range(STOP)]
    second.load_state_dict(first.state_dict())
    return _ids([*begun, *second])


def main() -> None:
    """Compare the batches of each loader with ours, and exit with an error if they differ."""
    for method in ("fork", "spawn"):
        loader = DataLoader(DATA, batch_size=8, num_workers=2, multiprocessing_context=method)
        require_same(f"DataLoader, {method}", _ids(loader), rows("concat")["input_ids"])
    print(f"DataLoader: {len(DATA)} rows from 2 workers, forked and spawned")
    stateful = functools.partial(StatefulDataLoader, BATCHES, batch_size=None, sampler=range(STEPS), num_workers=2)
    require_same("StatefulDataLoader", _resumed(stateful), _ids(BATCHES[step] for step in range(STEPS)))
    print(f"StatefulDataLoader: {STEPS} batches, going on after {STOP}")
    for replica in range(2):
        parts = Replica(replica)
        titan = functools.partial(ParallelAwareDataloader, parts, replica, 2, batch_size=None, sampler=range(STEPS))
        require_same("ParallelAwareDataloader", _resumed(titan), _ids(parts[step] for step in range(STEPS)))
    print("torchtitan's ParallelAwareDataloader: the same, for each of 2 ranks")


if __name__ == "__main__":
    main()
