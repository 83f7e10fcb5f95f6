"""The sections about tokens: how often each occurs, and what documents begin and end with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pipelines.prepare.report import charts
from pipelines.prepare.report.documents import documents_of, token_positions
from pipelines.prepare.report.elements import Chart, Group, Table
from pipelines.prepare.report.subject import SplitSubject, Subject, count, share
from tfrecord_io.manifest import TokenizerFacts

__all__ = ["ends_group", "tokens_group"]

_LISTED = 20
_LISTED_ENDS = 6
_CURVE_POINTS = 60
# Shares of unknown tokens above this are worth a warning: ordinary text has far fewer with any tokenizer that fits it.
_MOST_UNKNOWN = 0.01


def tokens_group(split: SplitSubject, subject: Subject) -> Group:
    """Return a split's tokens by rank, and the shares of special tokens."""
    counts = _counts(split, subject)
    total = int(counts.sum())
    if not total:
        return Group(title=split.name, texts=("No sampled record has a token.",))
    special = _special_table(counts, subject, split)
    warnings = []
    unknown = subject.manifest.tokenizer.unk_id
    if unknown is not None and counts[unknown] > _MOST_UNKNOWN * total:
        warnings.append(
            f"{share(counts[unknown], total)} of the tokens are unknown ({subject.token(unknown)}): this tokenizer "
            "does not fit the text."
        )
    order = np.argsort(-counts, kind="stable")[:_LISTED]
    frequent = Table(
        caption=f"The most frequent tokens, {split.source_of_figures}",
        head=("rank", "token", "id", "occurrences", "share"),
        rows=tuple(
            (str(rank), subject.token(token), str(token), count(counts[token]), share(counts[token], total))
            for rank, token in enumerate(order.tolist(), start=1)
            if counts[token]
        ),
        numbers=3,
        folded=True,
    )
    chart = _rank_chart(np.sort(counts[counts > 0])[::-1], subject)
    return Group(title=split.name, charts=(chart,), tables=(special, frequent), warnings=tuple(warnings))


def _counts(split: SplitSubject, subject: Subject) -> np.ndarray:
    """Return how often each id occurs in sampled inputs and targets, int64 [V]."""
    counts = np.zeros(subject.manifest.tokenizer.vocab_size, np.int64)
    for part in split.parts:
        ids = part.manifest.schema.values(part.columns, "token_ids")
        assert ids is not None, "a manifest has them"
        counts += np.bincount(ids[token_positions(part.columns, part.manifest)], minlength=len(counts))
        targets = part.manifest.schema.values(part.columns, "target_ids")
        mask = part.manifest.schema.values(part.columns, "target_mask")
        if targets is not None and mask is not None:
            counts += np.bincount(targets[mask > 0], minlength=len(counts))
    return counts


def _special_ids(facts: TokenizerFacts) -> Mapping[str, int]:
    names = {
        "unknown": facts.unk_id,
        "beginning (BOS)": facts.bos_id,
        "end (EOS)": facts.eos_id,
        "CLS": facts.cls_id,
        "SEP": facts.sep_id,
        "mask": facts.mask_id,
    }
    return {name: token for name, token in names.items() if token is not None}


def _special_table(counts: np.ndarray, subject: Subject, split: SplitSubject) -> Table:
    total = int(counts.sum())
    facts = subject.manifest.tokenizer
    rows = [
        (name, subject.token(token), count(counts[token]), share(counts[token], total))
        for name, token in _special_ids(facts).items()
    ]
    seen = int((counts > 0).sum())
    rows.append(("different tokens", f"of {facts.vocab_size:,}", count(seen), share(seen, facts.vocab_size)))
    return Table(
        caption=f"Special tokens, {split.source_of_figures}",
        head=("kind", "token", "occurrences", "share"),
        rows=tuple(rows),
        numbers=2,
    )


def _rank_chart(falling: np.ndarray, subject: Subject) -> Chart:
    """Draw counts by rank, both on a logarithmic scale; `falling` int64 [K], the most frequent first."""
    total, ranks = int(falling.sum()), len(falling)
    at = np.unique(np.rint(np.geomspace(1, ranks, _CURVE_POINTS)).astype(np.int64))
    width, height = max(math.log10(ranks), 1e-9), max(math.log10(falling[0]), 1e-9)
    points = [(math.log10(rank) / width, math.log10(falling[rank - 1]) / height) for rank in at.tolist()]
    half = int(np.searchsorted(np.cumsum(falling), total / 2)) + 1
    title = "Tokens by rank"
    says = (
        f"{ranks:,} different tokens occur; the {half:,} most frequent make up half of all {count(total)}. "
        "Both scales are logarithmic."
    )
    powers = [10**power for power in range(math.floor(width) + 1)]
    levels = [10**power for power in range(math.floor(height) + 1)]
    chosen = [rank for power in powers for rank in (power, 2 * power, 5 * power) if rank <= ranks]
    return charts.curve(
        points,
        title=title,
        says=says,
        values=Table(
            caption=title,
            head=("rank", "occurrences", "share of all tokens up to this rank"),
            rows=tuple((f"{rank:,}", count(falling[rank - 1]), share(falling[:rank].sum(), total)) for rank in chosen),
            numbers=3,
            folded=True,
        ),
        ticks=[(math.log10(power) / width, f"rank {power:,}" if power == 1 else f"{power:,}") for power in powers],
        levels=[(math.log10(level) / height, f"{level:,}") for level in levels],
    )


def ends_group(split: SplitSubject, subject: Subject) -> Group:
    """Return the first and last tokens of a split's documents."""
    found = documents_of(split.parts)
    if not len(found.first):
        return Group(title=split.name, texts=("Where documents begin cannot be told in these rows.",))
    first = _ends_table(found.first, "first", subject, split)
    last = _ends_table(found.last, "last", subject, split)
    return Group(title=split.name, tables=(first, last), warnings=_missing(found.first, subject))


def _ends_table(ids: np.ndarray, which: str, subject: Subject, split: SplitSubject) -> Table:
    tokens, counts = np.unique(ids, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rows = [
        (subject.token(tokens[i]), str(tokens[i]), count(counts[i]), share(counts[i], len(ids)))
        for i in order[:_LISTED_ENDS].tolist()
    ]
    if len(order) > _LISTED_ENDS:
        rest = int(counts[order[_LISTED_ENDS:]].sum())
        rows.append((f"{len(order) - _LISTED_ENDS:,} other tokens", "", count(rest), share(rest, len(ids))))
    caption = f"The {which} tokens of {len(ids):,} documents, {split.source_of_figures}"
    return Table(caption=caption, head=(f"{which} token", "id", "documents", "share"), rows=tuple(rows), numbers=3)


def _missing(first: np.ndarray, subject: Subject) -> tuple[str, ...]:
    """Warn of documents without the token with which the tokenizer itself begins every text."""
    own = subject.tokenizer("a")["input_ids"][:1]
    if not own or own[0] not in (subject.manifest.tokenizer.bos_id, subject.manifest.tokenizer.cls_id):
        return ()
    missing = int((first != own[0]).sum())
    # Parts of long documents begin with any token, so whole ones with the right beginning are enough there.
    parts = subject.manifest.layout["name"] == "pack"
    if not missing or (parts and missing < len(first)):
        return ()
    special = "tokenizer" if subject.manifest.tokenizer.bos_id is None else "bos-eos"
    joined = f" Give --special-tokens {special} if the model expects it."
    remedies = {"concat": joined, "pack": joined, "chat": " Here the chat template decides."}
    remedy = remedies.get(str(subject.manifest.layout["name"]), "")
    return (
        f"{share(missing, len(first))} of the documents do not begin with {subject.token(own[0])}, with which the "
        f"tokenizer begins every text.{remedy}",
    )
