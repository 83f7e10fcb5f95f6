"""Find duplicate and contaminated rows before the shards are planned, with the build's own runner.

Later runs of the same build reuse the result, OUT/.prep/FINGERPRINT/decided/SPLIT.parquet.
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
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import some, without_access

_log = logging.getLogger(__name__)

# Memory of a task: one batch of its texts, and a million keys.
_TASK_BYTES = 64 << 20


def evaluation_runs(config: SourceConfig) -> EvaluationRuns | None:
    """Return the hashes of all runs of N consecutive words in the evaluation sets of --decontaminate.

    N is the value of --decontaminate-words. None without such sets. Raises: SourceError, ConfigError.
    """
    if not config.decontaminate:
        return None
    sets: dict[str, list[np.ndarray]] = {}
    for address in config.decontaminate:
        match = re.fullmatch(r"(.+):([^\W\d][\w.]*)", address)
        dataset, column = (match[1], match[2]) if match else (address, "text")
        with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
            set_config = SourceConfig(dataset=dataset, text_columns=(column,))
            opened = opening.open_source(set_config, columns=(column,))
            source = selection.open_rows(set_config, opened, folder=folder, columns=(column,), run=ingest.run_here)
            splits = source.splits.values()
            if missing := [split.name for split in splits if column not in split.reader.schema.names]:
                raise ConfigError(
                    f"--decontaminate {address}: split {missing[0]!r} has no column {column!r}",
                    remedy=f"name its column of texts, as in --decontaminate {dataset}:question",
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
                    "--decontaminate %s: texts of fewer than %s words (%s of %s) are not compared with any row; give a "
                    "smaller --decontaminate-words to compare these too",
                    without_access(address),
                    config.decontaminate_words,
                    f"{total - with_runs:,}",
                    some(total, "text"),
                )
    return EvaluationRuns.joined(sets, num_words=config.decontaminate_words)


def _short_name(dataset: str, *, taken: Collection[str]) -> str:
    names = [part.partition(".")[0] for part in without_access(dataset).split("/")]
    name = next((part for part in reversed(names) if re.fullmatch(r"[\w-]+", part)), "set")
    return next(free for free in (name, *(f"{name}-{number}" for number in range(2, 99))) if free not in taken)


def mark(
    config: PrepareConfig,
    splits: Mapping[str, SplitSource],
    columns: ColumnPlan,
    runs: EvaluationRuns | None,
    *,
    runner: Runner,
    fingerprint: str,
) -> dict[str, SplitSource]:
    """Return `splits` with readers that leave out duplicate and contaminated rows.

    `columns`: the columns to compare. `runs`: the result of `evaluation_runs`. `fingerprint`: names the folder of an
    earlier result. Raises: ConfigError; the errors of `Runner.run`.
    """
    if runs is not None and columns.nested:
        raise ConfigError(
            "--decontaminate compares only --text-column, but this layout also reads "
            f"{', '.join(dict.fromkeys(columns.nested.values()))}",
            remedy="leave --decontaminate out",
        )
    if config.source.dedup_across_splits and "train" not in splits:
        raise ConfigError(
            f"--dedup-across-splits: there is no split train, only {', '.join(splits)}",
            remedy="give a split the name train, as in --split train=SPLIT, or leave --dedup-across-splits out",
        )
    paths = {name: decided_path(config.output.root, fingerprint, name) for name in splits}
    # Rows of other splits matter only with --dedup-across-splits.
    rows = {name: [source.source_split, source.ranges] for name, source in splits.items()}
    decided_for = {name: json.dumps(rows if config.source.dedup_across_splits else rows[name]) for name in splits}
    unused = {}
    if not config.overwrite and all(map(storage.exists, paths.values())):
        unused = {name: unused_rows.decode(path, most_rows=splits[name].num_rows) for name, path in paths.items()}
    is_stored = {name: unused_rows.decided_for(table) for name, table in unused.items()} == decided_for
    if not is_stored:
        stages.begin(f"comparing {some(sum(split.num_rows for split in splits.values()), 'row')}")
        unused = _compare(config, splits, columns, runs, runner=runner)
    marked = {}
    for name, split in splits.items():
        decided = unused_rows.DecidedRows(
            path=paths[name],
            num_rows=split.num_rows,
            share=max(1 - len(unused[name]) / split.num_rows, 1e-6),
            decided_for=decided_for[name],
            content=None if is_stored else unused[name],
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
    # The name is unique, since another run may compare other rows at the same time.
    folder = storage.join(root, WORK_FOLDER, f"{reservation.INGESTED}compared-{uuid.uuid4().hex}")
    # Train comes last, since it loses the rows that other splits have.
    names = sorted(splits, key=lambda name: name == "train") if across else list(splits)
    ordered = {name: splits[name] for name in names}
    comparison, parts = deciding.divide(
        ordered, columns=columns, dedup=dedup, runs=runs, across=across, folder=folder, inside=root
    )
    rounds: list[tuple[Any, Sequence[Any]]] = [(deciding.write_keys, parts)]
    if dedup is not None:
        rounds.append((deciding.find_duplicates, range(comparison.num_ranges)))
    # Addresses with credentials never leave this process.
    has_secrets = any(split.reader.addresses for split in splits.values())
    try:
        for function, tasks in rounds:
            most = here.num_processes(len(tasks), task_bytes=_TASK_BYTES, wanted=config.workers)
            work = Work(
                function=functools.partial(function, comparison),
                tasks=tasks,
                processes=0 if has_secrets else most,
                name=config.output.name,
                place=f"{root} {folder}",
            )
            with here.deaths_reported():
                runner.run(work, Progress())
        unused, conflicts = deciding.collect_unused(comparison, names)
    finally:
        storage.delete(folder, inside=root)
    if conflicts:
        _log.warning(
            "left out %s with another label than the kept row; correct the labels in the source, or leave such rows "
            "out with a --filter (a build lists all duplicates in %s/*/decided of its output)",
            some(conflicts, "duplicate"),
            WORK_FOLDER,
        )
    return unused
