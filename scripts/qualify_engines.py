"""Whether the fast engines give the very ids of the Rust tokenizer, tried on a million texts. Nothing is downloaded.

    python scripts/qualify_engines.py [--strings N] [--engine NAME ...] [--kind TEXT ...] [--any-version] [--json]

For each engine and each kind of tokenizer that it serves: hostile texts written out by hand, N random ones in all, the
code points of Unicode in nine surroundings, documents of megabytes, and whole rows with special tokens and truncation.

A new release of an engine's package is qualified by running this with --any-version, and then by raising the bound in
the engine's module. Exit status: 0 if nothing differs; 1 if something does, the shortest text of which is printed; 2
usage.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

# `python scripts/qualify_engines.py` puts scripts/ on the path, not the repository that holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from scripts.qualifying import comparing, figures, kinds
from scripts.qualifying.comparing import Effort, Trial

_DESCRIPTION = (__doc__ or "").partition("\n")[0]


def main() -> int:
    """Tries what was asked for and prints the table."""
    options = _options()
    chosen = [kind for kind in kinds.KINDS if not options.kind or any(part in kind for part in options.kind)]
    tokenizers = {kind: kinds.tokenizer(kind) for kind in chosen}
    opened = [
        (engine, kind)
        for kind in chosen
        for name in options.engine
        if (engine := comparing.ENGINES[name](tokenizers[kind], options.any_version))
    ]
    trials: list[Trial] = []
    for engine, kind in opened:
        print(f"{engine.name}, {kind} ({len(trials) + 1} of {len(opened)})", file=sys.stderr, flush=True)
        effort = _effort(options, random_strings=-(-options.strings // len(opened)))
        trials.append(comparing.try_engine(engine, kind=kind, tokenizer=tokenizers[kind], effort=effort))
    print(figures.as_table(trials), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(figures.as_json(trials), end="")
    return 1 if any(trial.differing for trial in trials) else 0


def _effort(options: argparse.Namespace, *, random_strings: int) -> Effort:
    return Effort(
        random_strings=random_strings,
        code_point_step=options.code_point_step,
        rows=max(100, random_strings // 20),
        long_bytes=options.long_bytes,
        seed=options.seed,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    parser.add_argument("--strings", type=int, default=1_000_000, metavar="N", help="random ones, default %(default)s")
    names = list(comparing.ENGINES)
    parser.add_argument("--engine", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--kind", nargs="+", metavar="TEXT", help="kinds whose names contain one of these")
    parser.add_argument("--any-version", action="store_true", help="also of packages that were not tried before")
    parser.add_argument("--code-point-step", type=int, default=1, metavar="N", help="every Nth code point only")
    parser.add_argument("--long-bytes", type=int, default=2_500_000, metavar="N", help="of each long document")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout, the table on stderr")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
