"""The launcher of `prep-tfrecords tokenizer`: open the source, train on its texts, evaluate, write."""

import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from typing import Any

from pipelines import stages
from pipelines.prepare import runners
from pipelines.prepare.launch import ingesting, open_job
from pipelines.prepare.options import paths
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.tokenizer_options import TokenizerRequest
from pipelines.prepare.process.progress import Progress, Watch, unwatched
from pipelines.prepare.process.threads import in_background, wait_for
from pipelines.prepare.sources.columns import chats
from pipelines.prepare.sources.columns.column_planning import plan_columns
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Inputs
from pipelines.prepare.sources.rows import selection, user_functions
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.tokenize import saved_copy
from pipelines.prepare.tokenize.chat import environment
from pipelines.prepare.tokenizer_training import texts, tokenizer_folder, training
from pipelines.prepare.tokenizer_training.styles import StyleTemplate
from tfrecord_io.errors import ColumnError, ConfigError
from tfrecord_io.shown import some

_RECORDED = ("vocab_size", "special_tokens", "min_frequency", "lowercase", "sample")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedTokenizer:
    """Result of training a tokenizer on the texts of `columns`. `splits`: rows by split, sampled or not."""

    request: TokenizerRequest
    columns: tuple[str, ...]
    splits: dict[str, int]
    rows: texts.RowCounts
    sampled_rows: int
    vocab_size: int
    evaluation: training.TokenizerEvaluation
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**self.record(), "engine": self.evaluation.engine, "seconds": round(self.seconds, 3)}

    def record(self) -> dict[str, Any]:
        """Return the content of training.json, which depends only on the command and its inputs."""
        request, evaluation = self.request, self.evaluation
        return {
            "kind": request.kind,
            "style": request.chosen_style,
            "options": {**{name: getattr(request, name) for name in _RECORDED}, "text_columns": list(self.columns)},
            "splits": self.splits,
            "rows": dataclasses.asdict(self.rows),
            "vocab_size": self.vocab_size,
            "evaluation": {
                "texts": evaluation.texts,
                "tokens_per_word": round(evaluation.tokens_per_word, 4),
                "unknown_share": round(evaluation.unknown_share, 6),
            },
        }


def train_tokenizer(request: TokenizerRequest, *, watch: Watch = unwatched) -> TrainedTokenizer:
    """Train a tokenizer, evaluate it on some texts, and write its folder.

    Raises: a PrepError for every fault that a user can cause; then no tokenizer is usable.
    """
    began = time.perf_counter()
    paths.require_dataset(request.source.dataset, *request.source.more_paths)
    template = training.template_for(request)
    tokenizer_folder.require_empty(request.output)
    if wrong := environment.syntax_error(request.chat_template or ""):
        raise ConfigError(f"--chat-template: {wrong}", remedy="correct the Jinja template")
    if request.workers:  # `tokenizers` reads the variable when its first thread starts
        os.environ.setdefault("RAYON_NUM_THREADS", str(request.workers))
    stages.begin(f"opening {request.source.dataset}")
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        splits, columns = _locate(request, folder)
        chosen = texts.sample(splits, rows=request.sample) if request.sample else splits
        source = texts.TrainingTexts(chosen, columns)
        tokenizer = _train(source, template, request, watch=watch)
    files = tokenizer_folder.files_of(
        tokenizer, template, max_length=request.max_length, chat_template=request.chat_template
    )
    stages.begin(f"measuring the tokenizer on {some(len(source.measured), 'text')}")
    assert source.rows is not None, "the texts were read to their end"
    trained = TrainedTokenizer(
        request=request,
        columns=columns.content,
        splits={split.name: split.num_rows for split in splits},
        rows=source.rows,
        sampled_rows=source.num_rows,
        vocab_size=tokenizer.get_vocab_size(),
        evaluation=training.evaluate(saved_copy.load(files), source.measured),
        seconds=time.perf_counter() - began,
    )
    tokenizer_folder.write(request.output, files, trained.record())
    return trained


def _train(source: texts.TrainingTexts, template: StyleTemplate, request: TokenizerRequest, *, watch: Watch) -> Any:
    progress = Progress()
    characters: list[str] = []
    if request.kind == "wordpiece":
        stages.begin(f"collecting the characters of {some(source.num_rows, 'row')}")
        characters = training.characters_of(source.read(), template)
    try:
        with watch("learning from", source.num_rows, progress):
            # The trainers do not check for signals, so only a training run in the background can be ended by Ctrl-C.
            learned = in_background(
                lambda: training.train(source.read(progress), template, request, characters=characters)
            )
            wait_for(learned)
    finally:
        source.stop.set()
    return learned.result()


def _locate(request: TokenizerRequest, folder: str) -> tuple[list[SplitSource], ColumnPlan]:
    config, functions = request.source, user_functions.find(request.source.functions)
    inputs, opened, plan = _find_source(config)
    settings: dict[str, Any] = {"opened": opened, "root": request.output, "workers": request.workers}
    run = functools.partial(
        ingesting.ingest_files, **settings, name="tokenizer", runner=runners.local(), progress=Progress()
    )
    folder, columns = opened.copy_folder(folder), open_job.columns_read(config, inputs)
    source = selection.open_rows(config, opened, functions, folder=folder, columns=columns, run=run)
    return list(source.splits.values()), plan_columns(config, source, inputs=inputs, plan=plan)


def _find_source(config: SourceConfig) -> tuple[Inputs, OpenedSource, ColumnPlan | None]:
    inputs = Inputs(texts=config.text_columns)
    try:
        return inputs, *open_job.find_source(config, inputs)
    except ColumnError:
        if config.text_columns == SourceConfig.text_columns:
            with contextlib.suppress(ColumnError):
                inputs = Inputs(finder=chats.FINDER)
                return inputs, *open_job.find_source(config, inputs)
        raise
