"""Measure the CPU seconds before a mixture's first batch: many datasets, with one stage and three.

All datasets of a mixture are one folder under many names, which costs the reader as much as many folders.
"""

import itertools
import sys

from scripts.benchmarks import figures, measure, preparing

_CASES = tuple(itertools.product((("global", 50), ("hosts", 100)), (1, 3)))
_SCRIPT = """
import sys, time
from tfrecord_io import reader
from tfrecord_io.mixture import Mixture
folder, order, number, stages = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
names = [f"d{at}" for at in range(number)]
datasets = dict.fromkeys(names, reader.open(folder))
next(iter(reader.open(folder).dataset("train", global_batch_size=256, order=order)))  # TensorFlow starts
began = time.process_time()
weights = {1000 * stage: {name: 1 + at * stage % 7 for at, name in enumerate(names)} for stage in range(stages)}
next(iter(Mixture(datasets, stages=weights).dataset("train", global_batch_size=256, order=order)))
print(time.process_time() - began)
"""


def report(settings: preparing.Settings) -> str:
    """Measure each case in new processes, and return a Markdown table of the CPU seconds."""
    output, tokenizer = settings.workdir / "built" / "mixtures", settings.tokenizer("wordpiece")
    measure.run(preparing.build_command("pad", folder=settings.corpus("tiny"), tokenizer=tokenizer, output=output))
    rows = []
    for (order, number), stages in _CASES:
        words = [sys.executable, "-c", _SCRIPT, str(output), order, str(number), str(stages)]
        seconds = [float(measure.run(words).stdout) for _ in range(settings.runs)]
        rows.append([f"{number} datasets, order of {order}, stages: {stages}", figures.spread(seconds)])
    return figures.table(["CPU s before the first batch", "measured"], rows)
