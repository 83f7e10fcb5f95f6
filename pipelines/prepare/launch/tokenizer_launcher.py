"""The launcher of `prep-tfrecords tokenizer`: open the source, count words, train, evaluate, write.

rows ──► counting tasks, on threads here or on a runner's workers ──► sums ──► training ──► DIR
             their files: a temporary folder here, DIR/.prep with workers elsewhere
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.launch import ingesting, task_runs
from pipelines.prepare.options import paths
from pipelines.prepare.options.tokenizer_options import TokenizerRequest
from pipelines.prepare.process import memory
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.sources.columns.column_planning import plan_columns, plan_types
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Inputs
from pipelines.prepare.sources.rows import function_calls, opening, selection
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.tokenize import tokenization
from pipelines.prepare.tokenize.chat import rendering
from pipelines.prepare.tokenizer_training import counting, evaluation, tokenizer_folder, training, word_counts
from pipelines.prepare.tokenizer_training.counting import CountTask, RowCounts
from pipelines.prepare.tokenizer_training.evaluation import Evaluation
from pipelines.terminal import stages
from tfrecord_io.errors import ConfigError

__all__ = ["TrainedTokenizer", "Watch", "train_tokenizer"]

# Text of the evaluation; the first of its rows are taken if it has more.
_EVALUATION_BYTES = 10_000_000
# At most this share of the rows is kept out of the training.
_EVALUATION_SHARE = 100

Watch = Callable[[int, Progress], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedTokenizer:
    """The result of a training.

    `rows` by what became of them; `words` of the texts, `distinct_words` of them, of which `words_left_out` were too
    rare to be kept.
    """

    request: TokenizerRequest
    splits: dict[str, int]
    rows: RowCounts
    words: int
    distinct_words: int
    words_left_out: int
    vocab_size: int
    evaluation: Evaluation
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that `tokenizer --json` prints."""
        return {**self.record(), "engine": self.evaluation.engine, "seconds": round(self.seconds, 3)}

    def record(self) -> dict[str, Any]:
        """Return what training.json says: all that the same command gives again."""
        request, found = self.request, self.evaluation
        return {
            "kind": request.kind,
            "style": request.chosen_style,
            "options": {
                "vocab_size": request.vocab_size,
                "special_tokens": list(request.special_tokens),
                "min_frequency": request.min_frequency,
                "limit_alphabet": request.limit_alphabet,
                "lowercase": request.lowercase,
                "text_columns": list(request.source.text_columns),
            },
            "splits": self.splits,
            "rows": dataclasses.asdict(self.rows),
            "words": self.words,
            "distinct_words": self.distinct_words,
            "words_left_out": self.words_left_out,
            "vocab_size": self.vocab_size,
            "evaluation": {
                "texts": found.texts,
                "held_out": found.held_out,
                "tokens_per_word": round(found.tokens_per_word, 4),
                "unknown_share": round(found.unknown_share, 6),
            },
        }


def train_tokenizer(
    request: TokenizerRequest, *, watch: Watch | None = None, report: Callable[[str], None] | None = None
) -> TrainedTokenizer:
    """Train a tokenizer and write its folder.

    `watch` is a context that is entered with the number of rows to count and the counters, and left when they are
    counted; `report` is called with a line of text now and then while the vocabulary is learned.

    Raises: a PrepError for everything that a user can cause. Unless this returns, no complete tokenizer is written.
    """
    began = time.perf_counter()
    paths.require_dataset(request.source.dataset, *request.source.more_paths)
    template = training.template_for(request)
    training.require_room(template, vocab_size=request.vocab_size)
    tokenizer_folder.check(request.output, overwrite=request.overwrite)
    if wrong := rendering.syntax_error(request.chat_template or ""):
        raise ConfigError(f"--chat-template: {wrong}", remedy="correct the template, which is one in Jinja")
    if request.beam_args:
        from pipelines.prepare.beam import options

        options.check(request.beam_args, root=request.output)
    stages.begin(f"opening {request.source.dataset}")
    progress = Progress()
    with _work_folder(request) as folder:
        splits, columns = _locate(request, folder, progress)
        evaluated, held_out = _evaluated(splits, request.evaluation_rows)
        tasks = _tasks(request, splits, columns, evaluated, held_out=held_out, folder=folder)
        with watch(sum(split.num_rows for split in splits), progress) if watch else contextlib.nullcontext():
            _count(tasks, request, progress)
        rows = counting.read_row_counts(tasks)
        texts = counting.read_texts(tasks, most_bytes=_EVALUATION_BYTES)
        words = word_counts.read_sums([task.path("count.arrow") for task in tasks])
    memory.release_freed()
    stages.begin(f"learning {request.vocab_size:,} tokens from {len(words):,} distinct words")
    tokenizer = training.train(words, template, request, threads=_threads(request), report=report)
    files = tokenizer_folder.files_of(
        tokenizer, template, max_length=request.max_length, chat_template=request.chat_template
    )
    stages.begin(f"measuring the tokenizer on {len(texts):,} texts")
    trained = TrainedTokenizer(
        request=request,
        splits={split.name: split.num_rows for split in splits},
        rows=rows,
        words=words.total,
        distinct_words=len(words) + words.left_out,
        words_left_out=words.left_out,
        vocab_size=tokenizer.get_vocab_size(),
        evaluation=evaluation.evaluate(tokenization.load(files), texts, held_out=held_out),
        seconds=time.perf_counter() - began,
    )
    tokenizer_folder.write(request.output, files, trained.record(), overwrite=request.overwrite)
    return trained


@contextlib.contextmanager
def _work_folder(request: TokenizerRequest) -> Iterator[str]:
    """Yield a folder that all workers can reach, for files that are needed until the words are counted."""
    if ingesting.works_here(request.beam_args):
        with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
            yield folder
        return
    folder = storage.join(request.output, tokenizer_folder.WORK_FOLDER)
    try:
        yield folder
    finally:
        storage.delete(folder)


def _locate(request: TokenizerRequest, folder: str, progress: Progress) -> tuple[list[SplitSource], ColumnPlan]:
    """Open the source, ingest what cannot be read in place, and return the chosen splits.

    Raises: SourceError, ColumnError; OutputError if the ingested copy cannot be written.
    """
    config = request.source
    functions = function_calls.find(config.functions)
    inputs = Inputs(texts=config.text_columns)
    columns = None if functions else inputs.names
    found = opening.open_source(config, columns=columns)
    asked = selection.needed_source_splits(config, list(found.listing.splits))
    if not functions:
        plan_types(
            config, {name: found.columns[name] for name in asked}, kind=found.listing.identity["kind"], inputs=inputs
        )
    folder = found.copy_folder(folder)
    if not ingesting.works_here(request.beam_args):
        found = ingesting.copies_for_workers(found, asked, root=request.output, folder=folder, inside=None)
    groups = opening.locate_rows(
        found,
        asked,
        folder=folder,
        inside=None,
        columns=columns,
        run=lambda tasks: ingesting.ingest_files(
            tasks,
            found,
            root=request.output,
            name="tokenizer",
            workers=request.workers,
            beam_args=request.beam_args,
            progress=progress,
        ),
    )
    source = selection.select(config, found, groups, functions)
    return list(source.splits.values()), plan_columns(config, source, inputs=inputs)


def _evaluated(splits: Sequence[SplitSource], rows: int) -> tuple[list[np.ndarray], bool]:
    """Return the row numbers to evaluate on, int64, sorted, for each split, and whether they are held out.

    They stand evenly in all chosen rows: so many of them, at most one in a hundred. If that is none, or none are to be
    held out, the same number of rows is evaluated on that are trained on.
    """
    total = sum(split.num_rows for split in splits)
    held_out = min(rows, total // _EVALUATION_SHARE)
    count = held_out or min(1000, total)
    wanted = (2 * np.arange(count) + 1) * total // (2 * max(1, count))
    found, before = [], 0
    for split in splits:
        numbers = [
            np.arange(start, stop)[wanted[(wanted >= at) & (wanted < at + stop - start)] - at]
            for (start, stop), at in zip(split.ranges, _starts(split, before), strict=True)
        ]
        found.append(np.unique(np.concatenate([np.zeros(0, np.int64), *numbers])))
        before += split.num_rows
    return found, held_out > 0


def _starts(split: SplitSource, before: int) -> list[int]:
    """Return the position of each range's first row among all chosen rows."""
    sizes = [stop - start for start, stop in split.ranges]
    return [before + sum(sizes[:index]) for index in range(len(sizes))]


def _tasks(
    request: TokenizerRequest,
    splits: Sequence[SplitSource],
    columns: ColumnPlan,
    evaluated: Sequence[np.ndarray],
    *,
    held_out: bool,
    folder: str,
) -> list[CountTask]:
    return counting.tasks_of(
        splits,
        columns,
        evaluated,
        counts_evaluated=not held_out,
        kind=request.kind,
        style=request.chosen_style,
        options=training.options_of(request),
        folder=folder,
    )


def _count(tasks: Sequence[CountTask], request: TokenizerRequest, progress: Progress) -> None:
    if not ingesting.works_here(request.beam_args):
        # Addresses with credentials stay in this process; the files behind them were copied.
        tasks = [
            counting.put_away(dataclasses.replace(task, reader=dataclasses.replace(task.reader, addresses={})))
            for task in tasks
        ]
    task_runs.run(
        counting.run_counted,
        tasks,
        folder=tasks[0].folder,
        root=request.output,
        name="tokenizer-words",
        workers=request.workers,
        beam_args=request.beam_args,
        progress=progress,
    )


def _threads(request: TokenizerRequest) -> int:
    return request.workers or cores()
