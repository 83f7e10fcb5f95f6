"""Sections of the report."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.filesize import decimal as size

from pipelines.prepare.audit import invariants
from pipelines.prepare.options.suggestions import about_fim, against_padding, listing
from pipelines.prepare.report.page import Group, Section, Table
from pipelines.prepare.report.subject import SampledRecords, SplitSubject, Subject, count, lengths_of, share, shortened
from pipelines.prepare.sources.rows.unused_rows import words_of
from tfrecord_io.manifest import HELD_OUT, NOT_HELD_OUT, Manifest, dump
from tfrecord_io.schema import ROLES, Role
from tfrecord_io.shown import some, without_secrets

_MOST_PADDING = 0.5
# Items of the fingerprint that the table of facts already shows.
_IN_FACTS = ("source", "versions", "tokenizer")
_LISTED_FACTS = 100
_MOST_UNKNOWN = 0.01
_MOST_BINS, _MOST_LABELS = 16, 200
# Largest ratio between the most frequent and the rarest label without a warning.
_UNEVEN = 10
_NAME = 100
_FILTERS = {"filtered": "by a filter", HELD_OUT: "held out for another split", NOT_HELD_OUT: "not held out"}


def overview_section(subject: Subject) -> Section:
    head = ("split", "rows", "filtered", "rejected", "records", "tokens", "tokens cut", "shards", "bytes")
    rows = []
    for name, split in subject.manifest.splits.items():
        ledger = split.ledger
        figures = (ledger.rows_in, ledger.rows_filtered, ledger.rows_rejected, split.num_examples)
        more = (split.num_tokens, ledger.tokens_cut, len(split.shards))
        rows.append((name, *map(count, (*figures, *more)), size(split.num_bytes)))
    shown = {split.name for split in subject.splits}
    left_out = [name for name in subject.manifest.splits if name not in shown]
    texts = (f"The sections below omit {some(len(left_out), 'split')}: {', '.join(left_out)}.",) if left_out else ()
    table = Table(caption="Splits (exact, from the manifest)", head=head, rows=tuple(rows), numbers=len(head) - 1)
    return Section(name="overview", title="At a glance", groups=(Group(tables=(table,), texts=texts),))


def padding_group(split: SplitSubject, subject: Subject) -> Group:
    """Return a table of a split's padding, with one line per row length, and the number of cut tokens."""
    manifest = subject.manifest
    rows, positions, tokens = [], 0, 0
    for length in manifest.bucket_lengths or (None,):
        described = manifest if length is None else manifest.bucket(length)
        shards = [shard for shard in split.finished.shards if length in (None, shard.length)]
        records = sum(shard.num_examples for shard in shards)
        positions_here = records * sum(feature.num_values for feature in described.schema.token_features)
        tokens_here = sum(shard.num_tokens for shard in shards)
        positions, tokens = positions + positions_here, tokens + tokens_here
        figures = map(count, (described.row_length, len(shards), records, tokens_here))
        rows.append((*figures, share(positions_here - tokens_here, positions_here)))
    cut = split.finished.ledger.tokens_cut
    says = f"Layout {manifest.layout['name']} (exact, from the manifest). "
    says += f"Cut: {some(cut, 'token')}, {share(cut, tokens + cut)} of all."
    head = ("row length", "shards", "records", "tokens", "padding")
    wasted = positions - tokens
    warning = f"{share(wasted, positions)} of the positions are padding; consider {against_padding(manifest.options)}."
    table = Table(caption=says, head=head, rows=tuple(rows), numbers=4)
    warnings = (warning,) if wasted > _MOST_PADDING * positions else ()
    return Group(title=split.name, tables=(table,), warnings=warnings)


def tokens_group(split: SplitSubject, subject: Subject) -> Group:
    """Return a table of a split's special tokens, and the number of distinct tokens."""
    facts = subject.manifest.tokenizer
    counts = _counts(split, facts.vocab_size)
    total, distinct = int(counts.sum()), int((counts > 0).sum())
    if not total:
        return Group(title=split.name, texts=("No sampled record has a token.",))
    special = {"unknown": facts.unk_id, "beginning (BOS)": facts.bos_id, "end (EOS)": facts.eos_id}
    special |= {"CLS": facts.cls_id, "SEP": facts.sep_id, "mask": facts.mask_id}
    rows = [
        (name, subject.token(token), count(counts[token]), share(counts[token], total))
        for name, token in special.items()
        if token is not None
    ]
    rows.append(("different tokens", f"of {facts.vocab_size:,}", count(distinct), share(distinct, facts.vocab_size)))
    caption, head = f"Special tokens, {split.source_of_figures}", ("kind", "token", "occurrences", "share")
    table = Table(caption=caption, head=head, rows=tuple(rows), numbers=2)
    warnings: tuple[str, ...] = ()
    if facts.unk_id is not None and counts[facts.unk_id] > _MOST_UNKNOWN * total:
        unknown = f"{share(counts[facts.unk_id], total)} of the tokens are unknown ({subject.token(facts.unk_id)})"
        warnings = (f"{unknown}, so this tokenizer does not fit the text.",)
    return Group(title=split.name, tables=(table,), warnings=warnings)


def _counts(split: SplitSubject, vocab_size: int) -> np.ndarray:
    counts = np.zeros(vocab_size, np.int64)
    for part in split.parts:
        for feature in part.manifest.schema.token_features:
            padded = invariants.padding(part.columns, part.manifest, side=ROLES[feature.role].side)
            counts += np.bincount(part.columns[feature.name][~padded], minlength=len(counts))
    return counts


def rows_group(split: SplitSubject, subject: Subject) -> Group:
    """Return the numbers of used, rejected and filtered rows in a split, and examples of rejected rows."""
    ledger = split.finished.ledger
    figures = [("used", ledger.rows_used)]
    for kind, reasons, words in (("rejected", ledger.rejected, words_of), ("filtered", ledger.filtered, _filter_words)):
        ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        figures += [(f"{kind}: {words(reason)}", number) for reason, number in ordered]
    rows = [(name, count(number), share(number, ledger.rows_in)) for name, number in figures]
    rows.append(("total", count(ledger.rows_in), share(1)))
    caption = "Rows read, from the manifest"
    tables = [Table(caption=caption, head=("rows", "number", "share"), rows=tuple(rows), numbers=2)]
    if split.rejected:
        examples = tuple((row.why, count(row.row), row.content) for row in split.rejected)
        head = ("reason", "row of the split", "content")
        tables.append(Table(caption="Examples of rejected rows", head=head, rows=examples))
    fim, length = ledger.fim, subject.manifest.row_length
    texts = (f"{about_fim(fim, rows=ledger.rows_used, length=length)}.",) if fim else ()
    return Group(title=split.name, tables=tuple(tables), texts=texts)


def _filter_words(reason: str) -> str:
    kind, _, name = reason.partition(":")
    return _FILTERS.get(kind, kind) + (f": {name}" if name else "")


def facts_section(subject: Subject) -> Section:
    """Return the section with the features, the manifest's facts, and the options of the build."""
    manifest = subject.manifest
    features = tuple(
        (feature.name, feature.dtype, str(list(feature.shape)), feature.meaning) for feature in manifest.schema.features
    )
    head = ("feature", "dtype", "shape", "meaning")
    facts = [("location of the source", _text(subject.place)), *_facts(manifest)]
    options = tuple((name, _text(value)) for name, value in sorted(manifest.options.items()) if name not in _IN_FACTS)
    tables = (
        Table(caption="Features of every record", head=head, rows=features),
        Table(caption="From the manifest", head=("fact", "value"), rows=tuple(fact for fact in facts if fact[1])),
        Table(caption="Options of the build that affect bytes", head=("option", "value"), rows=options),
    )
    return Section(name="facts", title="Facts", groups=(Group(tables=tables),))


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for name, value in json.loads(dump(manifest)).items():
        fields = value if isinstance(value, dict) else {"": value}
        for key, content in fields.items() if name not in ("features", "options", "splits") else ():
            fact = f"{name}: {key}" if key else name
            if isinstance(content, list):
                names = [str(entry.get("name", entry) if isinstance(entry, dict) else entry) for entry in content]
                yield fact, _text(listing(names, most=_LISTED_FACTS))
            elif content not in (None, {}):
                yield fact, _text(content)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return shortened(without_secrets(text))


def lengths_group(split: SplitSubject, subject: Subject) -> Group:
    """Return a histogram of the row lengths in a split. A bin's width is a power of two, like most row lengths."""
    lengths, noun, note = _known_lengths(split, subject.manifest)
    if not len(lengths):
        return Group(title=split.name, texts=(note,))
    longest, median = int(lengths.max()), int(np.percentile(lengths, 50, method="higher"))
    width = max(2, 1 << (-(-longest // _MOST_BINS) - 1).bit_length())
    counts = np.bincount(np.maximum(lengths - 1, 0) // width).tolist()
    names = [f"{first + 1:,}-{first + width:,}" for first in range(0, len(counts) * width, width)]
    text = f"Median: {some(median, 'token')}. Longest: {some(longest, 'token')}."
    table = _with_bars(f"{noun.capitalize()} by tokens", ("tokens", noun), names, counts)
    return Group(title=split.name, texts=(note, text), tables=(table,))


def _with_bars(caption: str, head: tuple[str, str], names: list[str], counts: list[int]) -> Table:
    rows = tuple((name, count(number), share(number, sum(counts))) for name, number in zip(names, counts, strict=True))
    shown = slice(_MOST_LABELS)
    return Table(caption=caption, head=(*head, "share"), rows=rows[shown], numbers=2, bars=tuple(counts[shown]))


def _known_lengths(split: SplitSubject, manifest: Manifest) -> tuple[np.ndarray, str, str]:
    lengths = np.concatenate([np.zeros(0, np.int64), *map(lengths_of, split.parts)])
    cut = "No row was cut."
    if split.finished.ledger.tokens_cut:
        cut = f"Rows of {manifest.row_length:,} tokens may have been cut."
    if manifest.layout["name"] == "pack":
        cut = "Longer documents were divided, cut or rejected."
    elif manifest.layout["name"] == "concat":
        cut = "A document that continues in the next row counts in both rows."
    if manifest.schema.with_role("segment_ids") is not None:
        return lengths, "documents", f"Documents in the rows, {split.source_of_figures}. {cut}"
    if manifest.schema.with_role("token_ids") is None:
        return lengths, "answers", f"Tokens of the prompt with each answer, {split.source_of_figures}. {cut}"
    if manifest.schema.with_role("attention_mask") is not None:
        return lengths, "rows", f"Tokens of a record, {split.source_of_figures}. {cut}"
    text = f"This layout joins documents and fills every row with {manifest.row_length:,} tokens, so lengths of "
    text += "documents are not stored. `prep-tfrecords plan` with the arguments of the build shows them."
    return np.zeros(0, np.int64), "rows", text


def labels_section(subject: Subject) -> Section | None:
    """Return the section with the frequency of each label or tag, or None without labels."""
    schema = subject.manifest.schema
    role: Role = "label" if schema.with_role("label") is not None else "token_labels"
    if (feature := schema.with_role(role)) is None:
        return None
    noun = "rows" if role == "label" else "tokens"
    groups = []
    for split in subject.splits:
        values = np.concatenate([np.zeros(0), *(_labels(part, role) for part in split.parts)])
        text = "No sampled record has a label."
        if len(values) and feature.dtype != "float32":
            groups.append(_classes_group(split, values.astype(np.int64), subject.manifest.label_names, noun=noun))
            continue
        if len(values):
            text = f"Numbers from {values.min():.4g} to {values.max():.4g} with mean {values.mean():.4g}, "
            text += f"{split.source_of_figures}."
        groups.append(Group(title=split.name, texts=(text,)))
    says = f"Number of {noun} with each label. A model learns little about rare labels."
    return Section(name="labels", title="Labels", says=says, groups=tuple(groups))


def _labels(part: SampledRecords, role: Role) -> np.ndarray:
    columns, schema = part.columns, part.manifest.schema
    values = schema.values(columns, role)
    assert values is not None, "the schema has the labels"
    if part.manifest.multi_hot_size:
        return np.nonzero(values)[1].astype(np.float64)
    mask = schema.values(columns, "token_label_mask") if role == "token_labels" else None
    return np.asarray(values.ravel() if mask is None else values[mask > 0], np.float64)


def _classes_group(split: SplitSubject, ids: np.ndarray, names: tuple[str, ...] | None, *, noun: str) -> Group:
    if names is not None:
        ids = ids[ids >= 0]
    present, occurrences = np.unique(ids, return_counts=True)
    by_id = dict.fromkeys(range(len(names or ())), 0) | dict(zip(present.tolist(), occurrences.tolist(), strict=True))
    order = sorted(by_id, key=lambda label: (-by_id[label], label))
    labels = [str(label) if names is None else names[label][:_NAME] for label in order]
    counts, total = [by_id[label] for label in order], len(ids)
    text = f"Most frequent label: {share(counts[0], total)}. Rarest label: {share(counts[-1], total)}. Figures "
    text += f"{split.source_of_figures}."
    table = _with_bars(f"{noun.capitalize()} by label", ("label", noun), labels, counts)
    uneven = counts[0] > _UNEVEN * max(counts[-1], 1)
    warnings = (f"The most frequent label is more than {_UNEVEN} times as frequent as the rarest.",) if uneven else ()
    return Group(title=split.name, texts=(text,), tables=(table,), warnings=warnings)
