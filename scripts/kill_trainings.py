#!/usr/bin/env python
"""Kill training runs at random moments, resume them, and compare their weights with an uninterrupted run's.

    python scripts/kill_trainings.py --kills 40 --backend jax

Each attempt gets SIGKILL after a random time, at most the duration of the last one that ended, and the next attempt
resumes. A training run that survives must have the same bits in all weights; then another one begins. Attempts are
forked from a process that has imported the trainer, which saves most of their time. Exit status: 0 if all weights are
equal.
"""

import argparse
import collections
import contextlib
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
STEPS, SAVE_EVERY, WEIGHTS = 40, 4, "model.weights.h5"
MODEL = "tests.train.small:bag"  # it has dropout, so random numbers matter too


def train(data: str, model_dir: str, backend: str) -> None:
    """Train a small model, or resume its training, in this process. Messages go to MODEL_DIR.log."""
    from pipelines.train.cli import main

    where = ["--data", data, "--model-dir", model_dir, "--tpu", "none", "--backend", backend]
    model = ["--task", "classify", "--model", MODEL, "--global-batch-size", "8", "--keep-checkpoints", "3"]
    with pathlib.Path(model_dir).with_suffix(".log").open("a") as log, contextlib.redirect_stderr(log):
        main([*where, *model, "--steps", str(STEPS), "--save-every", str(SAVE_EVERY)])


def main() -> int:
    """Kill and resume trainings until the number of kills is reached, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--backend", choices=("jax", "tensorflow"), default="jax")
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": options.backend, "JAX_PLATFORMS": "cpu"}
    sys.path.insert(0, str(REPOSITORY))  # for MODEL
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pipelines.train.run", f"pipelines.train.on_{options.backend}.backend"])
    draws, kills, resumed, trainings = np.random.default_rng(0), 0, collections.Counter[int](), 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        _build_reviews(work)

        def survives(model_dir: pathlib.Path, seconds: float | None) -> bool:
            attempt = context.Process(target=train, args=(f"{work}/data", str(model_dir), options.backend))
            attempt.start()
            attempt.join(seconds)
            attempt.kill()
            attempt.join()
            if attempt.exitcode not in (0, -signal.SIGKILL):
                sys.exit(f"exit status {attempt.exitcode}: {model_dir.with_suffix('.log').read_text()[-1000:]}")
            return attempt.exitcode == 0

        survives(work / "first", None)  # starts the server
        begun = time.monotonic()
        survives(work / "undisturbed", None)
        duration, expected = time.monotonic() - begun, (work / "undisturbed" / WEIGHTS).read_bytes()
        while kills < options.kills:
            trainings += 1
            model_dir = work / str(trainings)
            begun = time.monotonic()
            while not survives(model_dir, draws.uniform(0, duration) if kills < options.kills else None):
                kills += 1
                steps = [path.name[5:] for path in model_dir.glob("checkpoints/ckpt[-_]*")]
                resumed[max((int(step) for step in steps if step.isdigit()), default=0)] += 1
                begun = time.monotonic()
            duration = time.monotonic() - begun  # the machine may be busier, or less busy, than at first
            if (model_dir / WEIGHTS).read_bytes() != expected:
                print(f"other weights after {kills} kills: {model_dir.with_suffix('.log').read_text()}")
                return 1
            print(f"equal weights after {kills} kills; training runs: {trainings}", flush=True)
    print(f"kills by the step of the newest checkpoint: {dict(sorted(resumed.items()))}")
    return 0


def _build_reviews(work: pathlib.Path) -> None:
    build = ["-m", "prep_tfrecords", "build", "examples/reviews", "--output", f"{work}/data", "--label-column", "label"]
    for words in (
        ["examples/reviews/train_tokenizer.py", f"{work}/tokenizer"],
        [*build, "--tokenizer", f"{work}/tokenizer", "--max-length", "32"],
    ):
        subprocess.run([sys.executable, *words], cwd=REPOSITORY, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
