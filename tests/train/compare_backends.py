"""Compare the losses of both backends step by step, on one device or several:

    HF_HOME=$(mktemp -d) python -m tests.train.compare_backends --steps 100 --learning-rate 1e-3 --replicas 8 chat clm

All training runs begin with the same weights and have no dropout. The last column compares TensorFlow with itself after
one rounding of the initial weights, to show how far float32 alone drives two training runs apart. --float64 computes
everything in float64, so a remaining difference is mathematical.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import building
from tests.train import backend_runs, training


def _example(name: str, **changes: Any) -> Path:
    return building.built(building.REPOSITORY / "examples" / name, **changes)


def _chats() -> Path:
    return _example("chats", layout="chat", tokenizer=building.tokenizer("chats"), max_length=128)


_SMALL = "tests.train.small"
_KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "accumulate": lambda: {"model": "bert-tiny", "accumulate": 2},
    "bart": lambda: {"task": "seq2seq", "model": "bart-tiny", "data": training.translations()},
    "buckets": lambda: {"model": "bert-tiny", "data": building.reviews(max_length=16, bucket_lengths="8,16")},
    "chat": lambda: {"task": "clm", "model": "gpt2-tiny", "data": _chats()},
    "classify": lambda: {"model": "bert-tiny"},
    "clm": lambda: {"task": "clm", "model": "gpt2-tiny", "data": _example("reviews", layout="pack", max_length=64)},
    "everywhere": lambda: {"task": "mlm", "model": f"{_SMALL}:everywhere"},
    "dpo": lambda: {"task": "dpo", "model": "gpt2-tiny", "data": training.pairs(), "global_batch_size": 8},
    "mixture": lambda: {"model": "bert-tiny", "data": (training.data(),) * 2, "weights": "2,1"},
    "mlm": lambda: {"task": "mlm", "model": "bert-tiny"},
    "reward": lambda: {"task": "reward", "model": "gpt2-tiny", "data": training.pairs(), "global_batch_size": 8},
    "span": lambda: {"task": "span", "model": f"{_SMALL}:spans", "data": training.questions(), "eval_split": "train"},
    "t5": lambda: {"task": "seq2seq", "model": "t5-tiny", "data": training.translations()},
    "tokens": lambda: {"task": "tokens", "model": "bert-tiny", "data": training.tags()},
}
KINDS = tuple(_KINDS)


def options_of(kind: str) -> dict[str, Any]:
    return {"dropout": 0.0, "learning_rate": 1e-3, "warmup": 1, **_KINDS[kind]()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("kinds", nargs="*", default=KINDS)
    arguments = parser.parse_args()
    folder, sizes = building.new_folder(), {"steps": arguments.steps, "replicas": arguments.replicas}
    sizes |= {"learning_rate": arguments.learning_rate}

    def losses(backend: str, *how: str) -> list[list[float]]:
        name = "-".join((backend, *how))
        how = (*how, *["float64"] * arguments.float64)
        commands = [
            training.options(folder / name / kind, **{**options_of(kind), **sizes}, backend=backend)
            for kind in arguments.kinds
        ]
        # Replicas of TensorFlow on one CPU: a second training run in a process meets the collectives of the first.
        processes = [[words] for words in commands] if arguments.replicas > 1 else [commands]
        outcomes = [outcome for some in processes for outcome in backend_runs.run(backend, some, how=how)]
        assert not any(outcome.status for outcome in outcomes), [outcome.err for outcome in outcomes]
        return [list(training.losses(outcome.out).values()) for outcome in outcomes]

    by_run = losses("jax"), losses("tensorflow"), losses("tensorflow", "nudged")
    print(f"{'':12} JAX - TensorFlow   TensorFlow - itself   ({sizes})")
    for kind, jax, tensorflow, nudged in zip(arguments.kinds, *by_run, strict=True):
        far = [max(abs(a - b) for a, b in zip(others, tensorflow, strict=True)) for others in (jax, nudged)]
        print(f"{kind:12} {far[0]:16.1e} {far[1]:21.1e}")


if __name__ == "__main__":
    main()
