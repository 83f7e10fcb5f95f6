"""`prep-tfrecords tokenizer` against `Tokenizer.train_from_iterator`: whole processes, the same rows and settings."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys

from scripts.benchmarks import figures, measure, preparing
from scripts.benchmarks.figures import Figure, median, number, spread
from scripts.benchmarks.measure import Run

__all__ = ["report"]

_VOCAB_SIZE = 32_000
# With the corpus of each: theirs takes minutes for Unigram of the small one.
_KINDS = {"byte-bpe": "large", "wordpiece": "large", "unigram": "small"}
_MOST_BYTES = 2_000_000_000


def report(settings: preparing.Settings) -> tuple[str, list[Figure]]:
    """The table of this section, and its figures with a bar."""
    rows, found = [], []
    for kind, size in _KINDS.items():
        corpus = preparing.corpus_folder(settings, size)
        ours, theirs = [], []
        _ours(settings, kind, preparing.corpus_folder(settings, "tiny"))  # compiles the kernels
        for _ in range(settings.rounds(size)):
            measure.warm_pages(corpus)
            theirs.append(_theirs(settings, kind, corpus))
            ours.append(_ours(settings, kind, corpus))
        ratio = median(run.seconds for run in theirs) / median(run.seconds for run in ours)
        peak = median(run.tree_bytes for run in ours)
        rows.append(
            [
                kind,
                number(settings.num_bytes(size) / 1e6),
                spread([run.seconds for run in ours]),
                spread([run.seconds for run in theirs]),
                f"{number(ratio)}x",
                number(peak / 1e6),
                number(median(run.tree_bytes for run in theirs) / 1e6),
                _in_common(settings, kind),
            ]
        )
        found.append(
            Figure(name=f"training {kind} against train_from_iterator", measured=ratio, at_least=1.0, unit="x")
        )
        found.append(Figure(name=f"peak memory of training {kind}", measured=peak / 1e9, at_most=2.0, unit=" GB"))
    headers = ["kind", "text, MB", "ours, s", "theirs, s", "faster", "ours, MB", "theirs, MB", "tokens in common"]
    title = f"vocabulary {_VOCAB_SIZE:,}, whole processes"
    return f"{title}\n\n{figures.table(headers, rows)}", found


def _ours(settings: preparing.Settings, kind: str, corpus: pathlib.Path) -> Run:
    output = settings.workdir / f"trained-{kind}"
    shutil.rmtree(output, ignore_errors=True)
    options = ["--kind", kind, "--vocab-size", str(_VOCAB_SIZE), "--evaluation-rows", "0", "--output", str(output)]
    return measure.run([sys.executable, "-m", "pipelines.cli", "tokenizer", str(corpus), *options])


def _theirs(settings: preparing.Settings, kind: str, corpus: pathlib.Path) -> Run:
    arguments = [kind, str(corpus), str(_VOCAB_SIZE), str(settings.workdir / f"trained-{kind}.json")]
    return measure.run([sys.executable, "-m", "scripts.benchmarks.train_from_iterator", *arguments])


def _in_common(settings: preparing.Settings, kind: str) -> str:
    """How many tokens both have, with the same ids where the model merges bytes."""
    files = (settings.workdir / f"trained-{kind}" / "tokenizer.json", settings.workdir / f"trained-{kind}.json")
    ours, theirs = (json.loads(path.read_text(encoding="utf-8"))["model"] for path in files)
    if kind == "byte-bpe":
        same = ours["vocab"] == theirs["vocab"] and ours["merges"] == theirs["merges"]
        return "all, ids and merges too" if same else "**not the same**"
    one, other = (
        {*(token if isinstance(token, str) else token[0] for token in each["vocab"])} for each in (ours, theirs)
    )
    return f"{len(one & other):,} of {len(one):,}"
