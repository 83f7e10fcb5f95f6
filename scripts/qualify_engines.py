"""Whether the fast engines give the very ids of the Rust tokenizer. Nothing is downloaded.

    python scripts/qualify_engines.py kinds [--strings N] [--engine NAME ...] [--kind TEXT ...] [--any-version] [--json]
    python scripts/qualify_engines.py strange [--minutes N] [--processes N] [--seed N] [--tokenizers N] [--json]

kinds: for each engine and each kind of tokenizer in use that it serves, hostile texts written out by hand, N random
ones in all, the code points of Unicode in nine surroundings, documents of megabytes, and whole rows with special tokens
and truncation.

strange: tokenizers that nobody has, a new one several times a second, each with all that a build would do: the engine
is chosen, texts and whole rows are compared. It says who served them, since only a fast engine that served one is put
to the test. Each run has a new seed, which it prints; --seed N --only NUMBER tries one tokenizer again.

A new release of an engine's package is qualified by running `kinds` with --any-version, then by raising the bound in
the engine's module and running `strange`. Exit status: 0 if nothing differs; 1 if something does, or opening an engine
raises an error; 2 usage.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import sys

# `python scripts/qualify_engines.py` puts scripts/ on the path, not the repository that holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from scripts.qualifying import comparing, figures, fuzzing, kinds, running, strange
from scripts.qualifying.comparing import Effort, Trial

_DESCRIPTION = (__doc__ or "").partition("\n")[0]


def main() -> int:
    """Tries what was asked for and prints the table."""
    options = _options()
    return _kinds(options) if options.command == "kinds" else _strange(options)


def _kinds(options: argparse.Namespace) -> int:
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


def _strange(options: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    if options.only is not None:
        return _again(seed, options.only, num_texts=options.texts)
    every = []
    for seconds, outcome in running.outcomes(
        seed=seed,
        minutes=options.minutes,
        processes=options.processes,
        tokenizers=options.tokenizers,
        num_texts=options.texts,
    ):
        every.append(outcome)
        for found in outcome.findings:
            place = f"{seconds:.0f} s, {len(every)} tokenizers, {sum(each.texts for each in every)} texts"
            print(f"{place}: {found.engine}, number {found.number}", file=sys.stderr, flush=True)
    every.sort(key=lambda outcome: outcome.number)
    print(running.as_text(every, seed=seed), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(running.as_json(every, seed=seed), end="")
    return 1 if any(outcome.findings for outcome in every) else 0


def _again(seed: int, number: int, *, num_texts: int) -> int:
    """One tokenizer, with its whole tokenizer.json."""
    outcome = fuzzing.try_number(seed, number, num_texts=num_texts)
    print(running.as_text([outcome], seed=seed))
    if outcome.engine:
        print(strange.make(seed, number).tokenizer.backend_tokenizer.to_str())
    return 1 if outcome.findings else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_kinds(commands.add_parser("kinds", help="tokenizers of every kind in use"))
    _add_strange(commands.add_parser("strange", help="tokenizers put together at random"))
    return parser.parse_args()


def _add_kinds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strings", type=int, default=1_000_000, metavar="N", help="random ones, default %(default)s")
    names = list(comparing.ENGINES)
    parser.add_argument("--engine", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--kind", nargs="+", metavar="TEXT", help="kinds whose names contain one of these")
    parser.add_argument("--any-version", action="store_true", help="also of packages that were not tried before")
    parser.add_argument("--code-point-step", type=int, default=1, metavar="N", help="every Nth code point only")
    parser.add_argument("--long-bytes", type=int, default=2_500_000, metavar="N", help="of each long document")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout, the table on stderr")


def _add_strange(parser: argparse.ArgumentParser) -> None:
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="default %(default)s")
    parser.add_argument(
        "--processes", type=int, default=cores, metavar="N", help="default: the cores, here %(default)s"
    )
    parser.add_argument("--tokenizers", type=int, metavar="N", help="so many at most, default: as time allows")
    parser.add_argument("--texts", type=int, default=300, metavar="N", help="for each tokenizer, default %(default)s")
    parser.add_argument("--seed", type=int, metavar="N", help="default: a new one")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="the tokenizer of this number alone, again")
    parser.add_argument("--json", action="store_true", help="all findings as JSON on stdout, the table on stderr")


if __name__ == "__main__":
    sys.exit(main())
