"""Limits and functions of the product that tests replace. A rename breaks one line of this table, and no test."""

from collections.abc import Callable
from typing import Any

import pytest

_STORAGE, _SOURCES, _RUNNERS = "pipelines.prepare.storage", "pipelines.prepare.sources", "pipelines.prepare.runners"

SEAMS = {
    "block_bytes": f"{_STORAGE}.object_storage.BLOCK_BYTES",
    "build_model": "pipelines.train.models.build",
    "call_in_child": f"{_RUNNERS}.here.call",
    "cgroups": "pipelines.prepare.process.cores._CGROUPS",
    "child_memory_bytes": f"{_RUNNERS}.child.memory_bytes",
    "chunk_rows": "pipelines.prepare.layouts.rows_builder._ROWS_PER_CHUNK",
    "chunk_tokens": "pipelines.prepare.layouts.documents._TOKENS_PER_CHUNK",
    "commit": "pipelines.prepare.launch.launcher.commit",
    "connect_seconds": f"{_RUNNERS}.beam_options._CONNECT_SECONDS",
    "cores_of_shards": "pipelines.prepare.shards.shard_maker.cores",
    "cores_of_workers": f"{_RUNNERS}.here.cores",
    "decoded_bytes": f"{_SOURCES}.parquet.row_groups._DECODED_BYTES",
    "dedup_range_rows": "pipelines.prepare.dedup.deciding._RANGE_ROWS",
    "dedup_task_rows": "pipelines.prepare.dedup.deciding._TASK_ROWS",
    "distribution": f"{_RUNNERS}.shipping._DISTRIBUTION",
    "export_group_tokens": "pipelines.prepare.export.parquet.ParquetWriter.group_tokens",
    "export_shard": "pipelines.prepare.export.exporting.export_shard",
    "fast_engines": "pipelines.prepare.tokenize.engines.choice.FAST_ENGINES",
    "fetch_bytes": f"{_SOURCES}.parquet.row_groups._FETCH_BYTES",
    "fetch_tokenizer": "pipelines.prepare.tokenize.tokenization._fetch",
    "first_retry_seconds": f"{_STORAGE}.storage_errors._FIRST_SECONDS",
    "flink_parts": "scripts.get_flink_job_server._resolve",
    "hole_bytes": f"{_SOURCES}.parquet.row_groups._HOLE_BYTES",
    "hub_seconds": "pipelines.prepare.process.hub_libraries._SECONDS",
    "idle_workers": f"{_RUNNERS}.here._idle",
    "ingest_children": f"{_SOURCES}.ingest.ingest.children",
    "ingest_least_bytes": f"{_SOURCES}.ingest.ingest._LEAST_BYTES",
    "ingest_part_bytes": f"{_SOURCES}.ingest.ingest._PART_BYTES",
    "ingest_task": f"{_SOURCES}.ingest.ingest.run",
    "large_file_bytes": f"{_SOURCES}.resolve.line_ranges._LARGE_BYTES",
    "line_part_bytes": f"{_SOURCES}.resolve.line_ranges._PART_BYTES",
    "longest_retry_seconds": f"{_STORAGE}.storage_errors._LONGEST_SECONDS",
    "manifest_bytes": "tfrecord_io.manifest.MOST_BYTES",
    "memory_of_workers": f"{_RUNNERS}.here.memory_bytes",
    "modules": f"{_SOURCES}.rows.user_functions._modules",
    "most_named": f"{_SOURCES}.resolve.library._MOST_NAMED",
    "open_files": "tfrecord_io.random_access.storage._OPEN_FILES",
    "open_request": "pipelines.prepare.launch.launcher.open_request",
    "order_bytes": "tfrecord_io.ordering.global_order._MEMORY_BYTES",
    "own_cgroup": "pipelines.prepare.process.cores._OWN",
    "patience_seconds": f"{_STORAGE}.storage_errors._PATIENCE_SECONDS",
    "poll_seconds": f"{_RUNNERS}.dataflow._POLL_SECONDS",
    "progress_seconds": "pipelines.cli.printing._LINE_SECONDS",
    "read_payloads": "tfrecord_io.records.read_payloads",
    "resolve_tokenizer": "pipelines.prepare.tokenize.tokenization.resolve",
    "sample_bytes": "pipelines.prepare.plan.sample_rows._MOST_BYTES",
    "sample_rows": "pipelines.prepare.plan.sample_rows.ROWS",
    "shard_batch_bytes": "pipelines.prepare.shards.shard_writer._BATCH_BYTES",
    "silence_seconds": f"{_STORAGE}.gcs._SILENCE_SECONDS",
    "small_bytes": f"{_RUNNERS}.here._SMALL_BYTES",
    "table_columns": "pipelines.terminal.tables._FILE_COLUMNS",
    "tfds_files": "pipelines.prepare.dataset.tfds.files",
    "threaded_bytes": f"{_RUNNERS}.here._THREADED_BYTES",
    "train": "pipelines.train.run.train",
    "unpacked_bytes": "tfrecord_io.random_access.shards._UNPACKED_BYTES",
    "wait_for_job": f"{_RUNNERS}.on_beam.wait_for",
    "wheel": f"{_RUNNERS}.shipping._wheel",
    "worker_memory": f"{_RUNNERS}.child._LEAST_MEMORY",
    "write_bytes": f"{_STORAGE}.write_bytes",
    "write_file": f"{_STORAGE}.write_atomic",
    "write_plan": "pipelines.prepare.dataset.plan_files.write",
    "write_shard": "pipelines.prepare.shards.shard_writer.write",
    "write_shard_files": "pipelines.prepare.shards.shard_files.write",
}


def put(patch: pytest.MonkeyPatch, **values: Any) -> None:
    for name, value in values.items():
        patch.setattr(SEAMS[name], value)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail
