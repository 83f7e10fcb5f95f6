"""Find duplicate and contaminated rows before the plan, on the workers or runner of the build.

They are stored in OUT/.prep/FINGERPRINT/decided/SPLIT.parquet, where a later run of the same build reads them.
"""

import dataclasses
import functools
import json
import logging
import re
import tempfile
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines import stages
from pipelines.prepare import storage
from pipelines.prepare.dataset import reservation
from pipelines.prepare.dataset.job import decided_path
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.dedup import deciding, text_hashes
from pipelines.prepare.dedup.text_hashes import EvaluationRuns
from pipelines.prepare.options.config import PrepareConfig, SourceConfig
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.runners import here
from pipelines.prepare.runners.runner import Runner, Work
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.rows import opening, selection, unused_rows
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.sources.rows.unused_rows import DecidedRows
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import some, without_access

_log = logging.getLogger(__name__)

# Memory of a task: one batch of its texts, and a million keys.
_TASK_BYTES = 64 << 20


def evaluation_runs(config: SourceConfig) -> EvaluationRuns | None:
    """Hash the word runs of the --decontaminate sets; None if there are none. Raises: SourceError; ConfigError."""
    if not config.decontaminate:
        return None
    sets: dict[str, list[np.ndarray]] = {}
    for each in config.decontaminate:
        named = re.fullmatch(r"(.+):([^\W\d][\w.]*)", each)
        dataset, column = (named[1], named[2]) if named else (each, "text")
        with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
            of_set = SourceConfig(dataset=dataset, text_columns=(column,))
            opened = opening.open_source(of_set, columns=(column,))
            source = selection.open_rows(of_set, opened, folder=folder, columns=(column,), run=ingest.run_here)
            splits = source.splits.values()
            if missing := [split.name for split in splits if column not in split.reader.schema.names]:
                raise ConfigError(
                    f"--decontaminate {each}: split {missing[0]!r} has no column {column!r}",
                    remedy=f"name it, as in --decontaminate {dataset}:question",
                )
            name, total, with_runs = _short_name(dataset, taken=sets), 0, 0
            sets[name] = []
            for split in splits:
                for _, batch in split.read(split.ranges, [column]):
                    hashes, rows = text_hashes.run_hashes(batch.column(column), config.decontaminate_words)
                    sets[name].append(hashes)
                    total, with_runs = total + batch.num_rows, with_runs + len(np.unique(rows))
            if with_runs < total:
                _log.warning(
                    "--decontaminate %s: %s of its %s texts have fewer than %s words, and are not looked for; give a "
                    "smaller --decontaminate-words to find them",
                    without_access(each),
                    f"{total - with_runs:,}" if with_runs else "all",
                    f"{total:,}",
                    config.decontaminate_words,
                )
    return EvaluationRuns.joined(sets, num_words=config.decontaminate_words)


def _short_name(dataset: str, *, taken: Collection[str]) -> str:
    names = [part.partition(".")[0] for part in without_access(dataset).split("/")]
    name = next((part for part in reversed(names) if re.fullmatch(r"[\w-]+", part)), "set")
    return next(each for each in (name, *(f"{name}-{number}" for number in range(2, 99))) if each not in taken)


def mark(
    config: PrepareConfig,
    splits: Mapping[str, SplitSource],
    columns: ColumnPlan,
    runs: EvaluationRuns | None,
    *,
    runner: Runner,
    fingerprint: str,
) -> dict[str, SplitSource]:
    """Return the splits with readers that filter duplicate and contaminated rows.

    Raises: ConfigError if the options do not fit the dataset; as `Runner.run`.
    """
    if runs is not None and columns.nested:
        raise ConfigError(
            "--decontaminate takes columns of texts, and this layout reads lists or structs", remedy="leave it out"
        )
    if config.source.dedup_across_splits and "train" not in splits:
        raise ConfigError(
            f"--dedup-across-splits: there is no split train, only {', '.join(splits)}",
            remedy="name one train, as in --split train=SPLIT, or leave it out",
        )
    paths = {name: decided_path(config.output.root, fingerprint, name) for name in splits}
    # Rows of other splits matter only with --dedup-across-splits.
    of = {name: [source.source_split, source.ranges] for name, source in splits.items()}
    made_for = {name: json.dumps(of if config.source.dedup_across_splits else of[name]) for name in splits}
    found = {}
    if not config.overwrite and all(map(storage.exists, paths.values())):
        found = {name: unused_rows.decode(path, most_rows=splits[name].num_rows) for name, path in paths.items()}
    is_stored = {name: unused_rows.decided_for(table) for name, table in found.items()} == made_for
    if not is_stored:
        stages.begin(f"comparing {some(sum(split.num_rows for split in splits.values()), 'row')}")
        found = _compare(config, splits, columns, runs, runner=runner)
    marked = {}
    for name, split in splits.items():
        share = max(1 - len(found[name]) / split.num_rows, 1e-6)
        decided = DecidedRows(
            path=paths[name],
            num_rows=split.num_rows,
            share=share,
            decided_for=made_for[name],
            content=None if is_stored else found[name],
        )
        marked[name] = dataclasses.replace(split, reader=dataclasses.replace(split.reader, decided=decided))
    return marked


def _compare(
    config: PrepareConfig,
    splits: Mapping[str, SplitSource],
    columns: ColumnPlan,
    runs: EvaluationRuns | None,
    *,
    runner: Runner,
) -> dict[str, pa.Table]:
    root, across, dedup = config.output.root, config.source.dedup_across_splits, config.source.dedup
    # Another run may compare other rows at the same time.
    folder = storage.join(root, WORK_FOLDER, f"{reservation.INGESTED}compared-{uuid.uuid4().hex}")
    # Rows of train yield to equal rows of other splits, so train comes last.
    names = sorted(splits, key=lambda name: name == "train") if across else list(splits)
    ordered = {name: splits[name] for name in names}
    comparison, parts = deciding.divide(
        ordered, columns=columns, dedup=dedup, runs=runs, across=across, folder=folder, inside=root
    )
    rounds: list[tuple[Any, Sequence[Any]]] = [(deciding.write_keys, parts)]
    if dedup is not None:
        rounds.append((deciding.find_duplicates, range(comparison.num_ranges)))
    # Addresses with credentials never leave this process.
    sees_secrets = any(split.reader.addresses for split in splits.values())
    try:
        for function, tasks in rounds:
            most = here.number(len(tasks), task_bytes=_TASK_BYTES, wanted=config.workers)
            work = Work(
                function=functools.partial(function, comparison),
                tasks=tasks,
                processes=0 if sees_secrets else most,
                name=config.output.name,
                place=f"{root} {folder}",
            )
            runner.run(work, Progress())
        found, conflicts = deciding.tables(comparison, names)
    finally:
        storage.delete(folder, inside=root)
    if conflicts:
        _log.warning(
            "%s with another label than the row that stays, which keeps its own; a build lists duplicates "
            "in %s/*/decided of its output: correct their labels in the source, or leave such rows out with a --filter",
            some(conflicts, "duplicate"),
            WORK_FOLDER,
        )
    return found
