"""Output for people: progress and summaries on stderr; tables of `plan`, `inspect` and `trace` on stdout."""

import collections
import contextlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping

import rich.progress
from rich.console import Console
from rich.constrain import Constrain
from rich.filesize import decimal as size
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from pipelines.cli import drawings
from pipelines.prepare.audit.decode import DecodedRow, TextPiece
from pipelines.prepare.audit.trace import Traced
from pipelines.prepare.launch.built import Built
from pipelines.prepare.launch.estimate import Estimate
from pipelines.prepare.launch.tokenizer_launcher import TrainedTokenizer
from pipelines.prepare.options.suggestions import about_fim
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress, polled
from pipelines.prepare.sources.rows.unused_rows import words_of
from pipelines.terminal.console import results, shows_progress
from pipelines.terminal.tables import console, table
from tfrecord_io.manifest import Manifest, Split
from tfrecord_io.shown import duration, some, without_secrets

_POLL_SECONDS = 0.25
_LINE_SECONDS = 10.0
_WIDE = 100
_LISTED = 5


def count(number: int) -> str:
    """Format a number, as in 9,999,999, 18.2 M or 18.2 G."""
    if number < 10_000_000:
        return f"{number:,}"
    return f"{number / 1e6:,.1f} M" if number < 10_000_000_000 else f"{number / 1e9:,.1f} G"


@contextlib.contextmanager
def watch(doing: str, total: int, progress: Progress) -> Iterator[None]:
    """Show progress over `total` rows while the context is open: a bar on a terminal, lines elsewhere."""
    if not total:
        yield
        return
    out, bar, seconds = console(), None, _LINE_SECONDS
    out.print(f"{doing} {some(total, 'row')}")
    if not shows_progress():
        out, seconds = console(always=True), math.inf
    elif out.is_terminal:
        columns = (BarColumn(None), TextColumn("{task.percentage:3.0f} %  {task.description}"))
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        bar, seconds = rich.progress.Progress(*columns, *times, console=out, transient=True, expand=True), _POLL_SECONDS
        bar.add_task("", total=total)
    began = time.perf_counter()
    due = began + seconds

    def show() -> None:
        nonlocal due
        for note in progress.drain_notes():
            out.print(without_secrets(note), soft_wrap=True)
        if (now := time.perf_counter()) < due:
            return
        due += seconds
        counts, passed = progress.read(), now - began
        text = f"{counts.rows / passed:,.0f} rows/s"
        if counts.tokens or counts.shards:
            if bar is None or out.width >= _WIDE:  # a narrow terminal needs the space for times
                text += f"  {counts.tokens / passed:,.0f} tokens/s"
            text += f"  {some(counts.shards, 'shard')}, {size(counts.num_bytes)}"
        if bar is None:
            out.print(f"{counts.rows / total:4.0%}  {text}")
        else:
            bar.update(bar.task_ids[0], completed=counts.rows, description=text)

    with bar or contextlib.nullcontext(), polled(show, seconds=min(seconds, _POLL_SECONDS)):
        yield


def summary(built: Built) -> None:
    out = console()
    _print_splits(out, built.manifest)
    out.print(
        f"{some(built.shards_made, 'shard')} made, {built.shards_kept} kept from before, in {duration(built.seconds)} "
        f"(fingerprint {built.manifest.fingerprint[:12]})"
    )
    _print_engines(out, built.manifest)


def manifest_tables(manifest: Manifest) -> None:
    out = console(results())
    facts = manifest.tokenizer
    lengths = ", ".join(map(str, manifest.bucket_lengths or (manifest.row_length,)))
    _headed(out, manifest.name, f" layout {manifest.layout['name']}, row length {lengths}")
    out.print(f"tokenizer {facts.name}, vocabulary {facts.vocab_size:,}, pads {facts.padding_side}")
    features = [
        (feature.name, feature.dtype, str(list(feature.shape)), feature.meaning) for feature in manifest.schema.features
    ]
    out.print(table("feature", "dtype", "shape", "meaning", rows=features))
    if manifest.label_names is not None:
        out.print("labels: " + ", ".join(f"{index} = {name}" for index, name in enumerate(manifest.label_names[:20])))
    _print_splits(out, manifest)
    _print_engines(out, manifest)


def rows(decoded: Iterable[DecodedRow], *, width: int = 400) -> None:
    """Print decoded rows. Texts are cut after `width` characters."""
    out = console(results())
    pieces: list[TextPiece] = []
    for row in decoded:
        pieces += row.pieces
        # Marks in the text show the learned tokens.
        facts = {name: value for name, value in row.features.items() if name != "learned" or not row.pieces}
        extra = "".join(f", {name} {value!r}" for name, value in facts.items())
        _headed(out, row.split, f"record {row.record} of {row.shard}: {some(row.num_tokens, 'token')}{extra}")
        for line in drawings.marked(out, row.pieces or (TextPiece(text=row.text),), width=width):
            out.print(Text("    ") + line, soft_wrap=True)
    if (legend := drawings.legend(out, pieces)) is not None:
        out.print(legend, soft_wrap=True)


def traced(record: Traced, *, width: int = 400) -> None:
    """Print a record's source rows. Texts are cut after `width` characters."""
    out = console(results())
    rows = f"{some(len(record.rows), 'row')} of {record.source}"
    _headed(out, record.split, f"record {record.record} of {record.shard}: {rows}")
    split = record.origin or record.split
    for row in record.rows:
        in_file = f" = row {row.file_row + 1:,} of {row.file}" if row.file else ""
        tokens = f", tokens {row.tokens[0]} to {row.tokens[1] - 1}" if row.tokens else ""
        out.print(f"  {split}[{row.row}]{in_file}{tokens}", soft_wrap=True)
        for name, value in row.texts.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            text = text if len(text) <= width else f"{text[:width]} … ({some(len(text), 'character')})"
            for line in f"{name}: {text}".split("\n"):  # indented, so that a text cannot imitate our lines
                out.print(f"    {line}", soft_wrap=True)


def _headed(out: Console, head: str, rest: str) -> None:
    out.print(out.render_str(head, style="bold"), rest)


def estimates(estimated: list[Estimate], *, free: int | None) -> None:
    """Print the tables of `plan`. `free`: free bytes on the output's disk, None if unknown."""
    out = console(results())
    filtered = any(split.rows_filtered for split in estimated)
    names = ["rows", *["filtered"] * filtered, "rejected", "tokens", "shards", "bytes", "tokenizing"]
    lines = []
    for split in estimated:
        rows = (split.rows - split.rows_in_other_splits, *[split.rows_filtered] * filtered, split.rows_rejected)
        output = (size(split.num_bytes), duration(split.seconds))
        lines.append((split.split, *map(count, (*rows, split.num_tokens, split.shards)), *output))
    out.print(table("split", *names, rows=lines, numbers=len(names), title="estimated output"))
    seconds, num_bytes = sum(split.seconds for split in estimated), sum(split.num_bytes for split in estimated)
    out.print(f"tokenizing on the {some(cores(), 'core')} of this machine: about {duration(seconds / cores())}")
    if free is not None:
        short = "" if num_bytes <= free else ": not enough, choose an --output on another disk"
        out.print(f"output: {size(num_bytes)}, of {size(free)} free{short}")
    for split in estimated[:1]:  # the same for every split
        facts = {
            "tokenized with the engine": split.engine.partition(" ")[0],
            "a row is": split.row,
            "conversations:": split.chats,
            "functions:": ", ".join(split.functions),
        }
        for words, value in facts.items():
            if value:
                out.print(f"{words} {value}")
    if requests := sum(split.requests for split in estimated):
        out.print(f"requests to the Hub for the rows: at most {count(requests)}")
    for split in estimated:
        _print_filtered(out, split.split, split.filtered, of=split.rows - split.rows_in_other_splits)
    percents = [f"{percent} %" for percent in estimated[0].token_percentiles] if estimated else []
    lines = []
    for split in estimated:
        sides = {f"{split.split}, prompt and {side}": tokens for side, tokens in split.side_percentiles.items()}
        sides = sides or {split.split: split.token_percentiles}
        lines += [(name, *map(count, tokens.values())) for name, tokens in sides.items()]
    title = "tokens in a row, by percentile"
    out.print(table("split", *percents, rows=lines, numbers=len(percents), title=title))
    for split in estimated:
        if split.layouts:
            out.print(_layouts_table(split))
            for cost in split.layouts:
                if cost.lengths:
                    out.print(f"buckets are --bucket-lengths {','.join(map(str, cost.lengths))}", soft_wrap=True)


def _layouts_table(split: Estimate) -> Constrain:
    names = ("length", "rows", "padding", "tokens cut", "rows cut", "waste")
    best, rows = min(split.layouts, key=lambda cost: cost.waste), []
    for cost in split.layouts:
        shares = (f"{share:.1%}" for share in (cost.padding, cost.tokens_cut, cost.rows_cut))
        waste = f"{cost.waste:.1%}" if cost.waste < 10 else f"{cost.waste:,.0f} times"
        name = "buckets" if cost.lengths else cost.layout
        rows.append((name + " *" * (cost is best), str(cost.length), count(cost.records), *shares, waste))
    caption = "waste: padding and cut tokens per token of the rows; * has the least waste"
    options = {"title": f"{split.split}, by layout", "caption": caption, "caption_justify": "left"}
    return table("layout", *names, rows=rows, numbers=len(names), **options)


def _print_filtered(out: Console, split: str, filtered: Mapping[str, int], *, of: int) -> None:
    if filtered.keys() - {"filtered"}:
        shown = ", ".join(f"{reason} {count(rows)} ({rows / of:.1%})" for reason, rows in filtered.items())
        out.print(f"{split}: filtered {shown}", soft_wrap=True, markup=False)


def _print_splits(out: Console, manifest: Manifest) -> None:
    filtered = any(split.ledger.filtered_of_split for split in manifest.splits.values())
    names = ["rows", *["filtered"] * filtered, "rejected", "examples", "tokens", "cut", "shards", "bytes"]
    splits = []
    for name, split in manifest.splits.items():
        ledger = split.ledger
        rows = (ledger.rows_of_split, *[sum(ledger.filtered_of_split.values())] * filtered, ledger.rows_rejected)
        output = (split.num_examples, split.num_tokens, ledger.tokens_cut, len(split.shards))
        splits.append((name, *map(count, (*rows, *output)), size(split.num_bytes)))
    out.print(table("split", *names, rows=splits, numbers=len(names)))
    for name, split in manifest.splits.items():
        _print_filtered(out, name, split.ledger.filtered_of_split, of=split.ledger.rows_of_split)
        for line in _about(name, split, manifest.bucket_lengths):
            out.print(line)
        if fim := split.ledger.fim:
            about = about_fim(fim, rows=split.ledger.rows_used, length=manifest.row_length)
            out.print(f"{name}: {about}", soft_wrap=True)
    for function in manifest.options.get("functions", []):
        option = "".join(f"--{kind} {function[kind]}" for kind in ("map", "filter") if kind in function)
        of = f"version {function['version']}" if "version" in function else f"module {function['module_sha256'][:12]}"
        out.print(f"function {option} ({of})")


def _about(name: str, split: Split, bucket_lengths: tuple[int, ...]) -> Iterator[str]:
    buckets = []
    for length in bucket_lengths:
        of_length = [shard for shard in split.shards if shard.length == length]
        rows, tokens = sum(shard.num_examples for shard in of_length), sum(shard.num_tokens for shard in of_length)
        if rows:
            buckets.append(f"{rows:,} of {length} ({1 - tokens / (rows * length):.0%} padding)")
    if bucket_lengths:
        yield f"rows of {name} by length: {', '.join(buckets)}"
    if rejected := split.ledger.rejected:
        reasons = ", ".join(f"{words_of(reason)} in {count:,}" for reason, count in sorted(rejected.items()))
        counts = [(shard.name, shard.ledger.rows_rejected) for shard in split.shards]
        shards = [f"{name} {count:,}" for name, count in counts if count]
        more = f" and {some(len(shards) - _LISTED, 'more shard')}" if len(shards) > _LISTED else ""
        yield f"rejected in {name}: {reasons} (rows in rejected/; {', '.join(shards[:_LISTED])}{more})"
    if split.labels:
        yield f"labels in {name}: {split.labels.text}"
    if split.num_unlabelled:
        yield f"without label in {name}: {split.num_unlabelled:,} of {some(split.num_examples, 'example')} (label -1)"


def _print_engines(out: Console, manifest: Manifest) -> None:
    rows_of, checked = collections.Counter[str](), collections.Counter[str]()
    for engines in manifest.engines.get("splits", {}).values():
        for engine, counts in engines.items():
            rows_of[engine] += counts["rows"]
            checked[engine] += counts["rows_checked"]
    whole = " in all" if manifest.generations else ""
    for engine, rows in sorted(rows_of.items()):
        also = f"; for {checked[engine]:,} of them, the reference had the same result" if checked[engine] else ""
        out.print(f"{some(rows, 'row')}{whole} tokenized with the engine {engine.partition(' ')[0]}{also}")


def trained_tokenizer(trained: TrainedTokenizer) -> None:
    out, evaluation = console(), trained.evaluation
    out.print(table("split", "rows", rows=((name, count(rows)) for name, rows in trained.splits.items()), numbers=1))
    read, size_of = (count(trained.rows.trained), size(trained.rows.text_bytes)), count(trained.vocab_size)
    figures = (*read, size_of, f"{evaluation.tokens_per_word:.3f}", f"{evaluation.unknown_share:.3%}")
    out.print(table("rows", "text", "vocabulary", "tokens per word", "unknown", rows=[figures], numbers=5))
    texts = some(evaluation.texts, "text")
    out.print(f"tokens per word (between spaces) and share of unknown tokens, in the first {texts}")
    for kind, rows in (("filtered", trained.rows.filtered), ("rejected", trained.rows.rejected)):
        if rows:
            out.print(f"rows {kind}: {', '.join(f'{words_of(reason)} in {n:,}' for reason, n in rows.items())}")
    if trained.sampled_rows < (total := sum(trained.splits.values())):
        out.print(f"a sample of {trained.sampled_rows:,} of {some(total, 'row')} was read (--sample)")
    out.print(
        f"{trained.request.kind} tokenizer in the style of {trained.request.chosen_style} in {trained.request.output}, "
        f"served by the engine {evaluation.engine}, in {duration(trained.seconds)}"
    )
