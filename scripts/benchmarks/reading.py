"""The reader side: our reader and the hand-written input functions over the same shards, in turns."""

import sys

from scripts.benchmarks import figures, measure, preparing
from scripts.benchmarks.figures import Figure, median, number, spread

_WHAT = {
    "ours": "our reader: three-level shuffle, int32",
    "bare": "batch, map(parse_example): no shuffle, int64",
    "per_record": "map(parse_single_example), cast, shuffle, batch",
    "per_record_one_thread": "the same without num_parallel_calls",
    "ours_objective": "our reader with the masked-LM objective",
    "bare_objective": "shuffle, batch, map(parse_example), cast, masked-LM objective",
}
# (name, ours, theirs, at least). Of several of theirs the fastest counts: on few cores more threads can be slower.
_BARS = (
    ("reader over one parse per record", "ours", ("per_record", "per_record_one_thread"), 6.0),
    ("reader over the bare graph", "ours", ("bare",), 0.85),
    ("reader over the bare graph, both with masked-LM", "ours_objective", ("bare_objective",), 0.85),
)


def report(settings: preparing.Settings) -> tuple[str, list[Figure]]:
    """The table of this section, and its figures with a bar."""
    root = preparing.build_large_pad(settings)
    measure.warm_pages(root)
    speeds: dict[str, list[float]] = {contender: [] for contender in _WHAT}
    for turn in range(settings.reader_rounds):
        for contender in _WHAT:
            command = [sys.executable, "-m", "scripts.benchmarks.reading_worker"]
            run = measure.run(
                [*command, contender, str(root), str(settings.reader_seconds)], env={"TF_CPP_MIN_LOG_LEVEL": "3"}
            )
            speeds[contender].append(float(run.result["examples_per_second"]))
            text = f"reader {contender}, round {turn + 1}: {number(speeds[contender][-1])} examples/s"
            print(f"  {text}", file=sys.stderr, flush=True)
    medians = {contender: median(speeds[contender]) for contender in _WHAT}
    rows = [
        [what, spread(speeds[contender]), number(medians[contender] / medians["bare"])]
        for contender, what in _WHAT.items()
    ]
    found = [
        Figure(name=name, measured=medians[ours] / max(medians[their] for their in theirs), at_least=at_least, unit="x")
        for name, ours, theirs, at_least in _BARS
    ]
    return figures.table(["reader", "examples/s", "of the bare graph"], rows), found
