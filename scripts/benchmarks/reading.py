"""Compare our reader with hand-written input functions on the same shards, in turns."""

import sys

from scripts.benchmarks import figures, measure, preparing
from scripts.benchmarks.figures import median, number, spread

_WHAT = {
    "ours": "our reader: three-level shuffle, int32",
    "bare": "batch, map(parse_example): no shuffle, int64",
    "per_record": "map(parse_single_example), cast, shuffle, batch",
    "ours_objective": "our reader with the masked-LM objective",
    "bare_objective": "shuffle, batch, map(parse_example), cast, masked-LM objective",
}


def report(settings: preparing.Settings) -> str:
    """Return the table of this section."""
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
    return figures.table(["reader", "examples/s", "of the bare graph"], rows)
