"""Kill a training on JAX at random moments, resume it each time, and compare it with one that was left alone:

    HF_HOME=$(mktemp -d) python -m tests.train.kill_and_resume --kills 20 [--devices 8,4]

With several numbers of devices each start takes the next one.
"""

import argparse
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests import building
from tests.train import training

STEPS = 2000
OPTIONS: dict[str, Any] = {"backend": "jax", "model": "tests.train.small:bag", "global_batch_size": 32, "steps": STEPS}


def run(folder: Path, *, devices: int, after: int | None = None, wait: float = 0.0) -> dict[int, float]:
    """Train on, and kill it some seconds `after` so many lines. Return the losses that were reported."""
    process = training.program(folder, **OPTIONS, replicas=devices, learning_rate=1e-3, save_every=10, log_every=5)
    assert process.stdout is not None
    losses: dict[int, float] = {}
    for line in map(json.loads, process.stdout):
        if "step" in line and "split" not in line:
            losses[line["step"]] = line["loss"]
        if after is not None and len(losses) == after:
            time.sleep(wait)
            process.kill()
            process.communicate()
            return losses
    assert process.wait() == 0, process.stderr and process.stderr.read()
    return losses


def arrays(folder: Path) -> list[np.ndarray]:
    """Weights, optimizer's state and step of the last checkpoint."""
    import jax
    import orbax.checkpoint as ocp

    reader, path = ocp.PyTreeCheckpointer(), folder / "checkpoints" / f"ckpt_{STEPS}" / "default"
    like = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(path).item_metadata.tree)
    return jax.tree.leaves(reader.restore(path, restore_args=like))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--devices", default="8")
    asked = parser.parse_args()
    folder, numbers = building.new_folder(), [int(each) for each in asked.devices.split(",")]
    expected = run(folder / "alone", devices=numbers[0])
    found: dict[int, float] = {}
    starts, kills = itertools.cycle(numbers), 0
    while kills < asked.kills and max(found, default=0) < STEPS - 200:
        found |= run(folder / "killed", devices=next(starts), after=random.randint(1, 20), wait=random.random() / 10)
        kills += 1
    found |= run(folder / "killed", devices=next(starts))
    far = max(abs(found[step] - loss) for step, loss in expected.items())
    pairs = list(zip(arrays(folder / "alone"), arrays(folder / "killed"), strict=True))
    equal = sum(np.array_equal(one, other) for one, other in pairs)
    print(f"devices {asked.devices}: killed {kills} times; largest difference of {len(expected)} losses {far:.1e}")
    print(f"{equal} of {len(pairs)} arrays equal; largest difference {max(np.abs(a - b).max() for a, b in pairs):.1e}")


if __name__ == "__main__":
    main()
