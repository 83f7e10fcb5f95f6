"""Check that the fast engines return exactly the token ids of the Rust tokenizer. Nothing is downloaded.

    python scripts/qualify_engines.py kinds [--strings N] [--engine NAME ...] [--kind TEXT ...] [--any-version]
    python scripts/qualify_engines.py files FOLDER ... [--strings N] [--engine NAME ...] [--any-version]
    python scripts/qualify_engines.py strange [--minutes N] [--seed N] [--tokenizers N]

kinds: for each engine and each common kind of tokenizer that it serves, compares hand-written hostile texts, N random
ones in total, the code points of Unicode in eleven contexts, documents of megabytes, and whole rows with special
tokens and truncation. --seed N selects other random texts.

files: the same with published tokenizers, given as folders, or folders that contain them. The table has the number of
compared ids and the engine's CPU seconds as a fraction of the reference's, followed by the reasons why the reference
serves the others.

strange: random tokenizers that nobody uses, several per second. Each goes through the steps of a build: the engine is
chosen, texts and whole rows are compared. The table names the engines, since only tokenizers served by a fast engine
test anything. Each run has a new seed, which it prints; --seed N --only NUMBER tries one tokenizer again. One run keeps
one core busy.

To qualify a new release of an engine's package, run `kinds` with --any-version, raise the bound in the engine's module,
and run `strange`. Exit status: 0 if nothing differs; 1 if something does; 2 usage.
"""

import argparse
import itertools
import os
import pathlib
import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

# `python scripts/qualify_engines.py` puts scripts/ on the path, but not the repository, which holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RUST_BACKTRACE", "0")

from pipelines.prepare.tokenize import saved_copy
from pipelines.prepare.tokenize.engines import Engine, NotQualified
from tests.qualifying import comparing, kinds, strange
from tests.qualifying.comparing import Trial

_DESCRIPTION = (__doc__ or "").partition("\n")[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison named on the command line, print its table, and return the exit status."""
    options = _options(arguments)
    return {"kinds": _kinds, "files": _files, "strange": _strange}[options.command](options)


def _kinds(options: argparse.Namespace) -> int:
    chosen = [kind for kind in kinds.KINDS if not options.kind or any(part in kind for part in options.kind)]
    return _compare({kind: kinds.tokenizer(kind) for kind in chosen}, options)


def _files(options: argparse.Namespace) -> int:
    tokenizers = {}
    for folder in options.folders:
        for file in sorted(folder.rglob("tokenizer.json")):
            name = str(file.parent.relative_to(folder.parent))
            tokenizers[name] = saved_copy.class_for(str(file.parent)).from_pretrained(file.parent, mistral_format=False)
    if not tokenizers:
        print(f"no tokenizer.json in {', '.join(map(str, options.folders))}", file=sys.stderr)
        return 2
    return _compare(tokenizers, options)


def _compare(tokenizers: Mapping[str, Any], options: argparse.Namespace) -> int:
    opened: list[tuple[Engine, str]] = []
    refused: dict[str, list[str]] = {kind: [] for kind in tokenizers}
    for kind, name in itertools.product(tokenizers, options.engine or comparing.ENGINES):
        engine = _opened(name, tokenizers[kind], any_version=options.any_version)
        if isinstance(engine, str):
            refused[kind].append(f"{name}: {engine}")
        else:
            opened.append((engine, kind))
    trials: list[Trial] = []
    for engine, kind in opened:
        print(f"{engine.name}, {kind} ({len(trials) + 1} of {len(opened)})", file=sys.stderr, flush=True)
        random_strings = -(-options.strings // len(opened))
        trials.append(
            comparing.try_engine(
                engine,
                kind=kind,
                tokenizer=tokenizers[kind],
                random_strings=random_strings,
                code_point_step=options.code_point_step,
                rows=max(100, random_strings // 20),
                long_bytes=options.long_bytes,
                seed=options.seed,
            )
        )
    print(comparing.as_table(trials))
    for kind in tokenizers.keys() - {kind for _, kind in opened} if options.command == "files" else ():
        print(f"reference, {kind}: {'; '.join(refused[kind])}")
    return 1 if any(trial.differing for trial in trials) else 0


def _opened(name: str, tokenizer: Any, *, any_version: bool) -> Engine | str:
    try:
        return comparing.opened(name, tokenizer, any_version=any_version)
    except NotQualified as error:
        return str(error)


def _strange(options: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    end = time.monotonic() + 60 * options.minutes
    numbers = itertools.count() if options.tokenizers is None else range(options.tokenizers)
    every: list[Trial] = []
    for number in numbers if options.only is None else [options.only]:
        if time.monotonic() > end:
            break
        every.append(comparing.try_strange(seed, number, num_texts=options.texts))
        for finding in every[-1].examples:
            print(f"number {number}: {finding}", file=sys.stderr, flush=True)
    print(comparing.as_table(every))
    if options.only is not None and every[0].engine != "unusable":
        print(strange.make(seed, options.only)[1].backend_tokenizer.to_str())
    return 1 if any(trial.examples for trial in every) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)
    kinds_in_use = commands.add_parser("kinds", help="tokenizers of every kind in use")
    kinds_in_use.add_argument(
        "--kind", nargs="+", action="extend", metavar="TEXT", help="kinds whose names contain one of these"
    )
    files = commands.add_parser("files", help="published tokenizers")
    files.add_argument("folders", nargs="+", type=pathlib.Path, metavar="FOLDER", help="of one, or of several")
    engines: Any = {"nargs": "+", "action": "extend", "choices": comparing.ENGINES, "metavar": "NAME"}
    number: Any = {"type": int, "metavar": "N"}
    for command in (kinds_in_use, files):
        command.add_argument("--engine", **engines, help=f"of {', '.join(comparing.ENGINES)}")
        command.add_argument("--any-version", action="store_true", help="also of packages that were not tried before")
        command.add_argument("--strings", **number, default=1_000_000, help="random ones, default %(default)s")
        command.add_argument("--code-point-step", **number, default=1, help="every Nth code point only")
        command.add_argument("--long-bytes", **number, default=2_500_000, help="of each long document")
        command.add_argument("--seed", **number, default=0, help="default %(default)s")
    odd = commands.add_parser("strange", help="tokenizers put together at random")
    odd.add_argument("--minutes", type=float, default=10.0, metavar="N", help="default %(default)s")
    odd.add_argument("--tokenizers", type=int, metavar="N", help="so many at most, default: as time allows")
    odd.add_argument("--texts", type=int, default=300, metavar="N", help="for each tokenizer, default %(default)s")
    odd.add_argument("--seed", type=int, metavar="N", help="default: a new one")
    odd.add_argument("--only", type=int, metavar="NUMBER", help="the tokenizer of this number alone, again")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
