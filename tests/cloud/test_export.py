"""An export in a bucket, of a dataset in a bucket: the objects of a local export, also after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.prepare.export import export_tasks
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.workers import Done
from tests import building
from tests.building import reviews
from tests.cloud.emulator import Gcs
from tfrecord_io.errors import OutputError


def test_a_bucket_gets_the_files_of_a_local_export(gcs: Gcs, tmp_path: Path) -> None:
    bucket = gcs.bucket()
    options = building.options(f"gs://{bucket}/reviews", label_column="label")
    assert building.command("build", building.REVIEWS, *options).status == 0
    command = ["export", f"gs://{bucket}/reviews", "--to", "parquet", "--output", f"gs://{bucket}/out", "--workers", 1]
    made, real = [], export_tasks.run

    def stop_at_second(task: export_tasks.ExportTask, progress: Progress) -> Done:
        made.append(task)
        if len(made) >= 2:
            raise OutputError("stopped", remedy="go on")
        return real(task, progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_tasks, "run", stop_at_second)
        assert building.command(*command).error[0] == "stopped"
    outcome = building.command(*command)
    assert "3 shards exported, 1 kept" in outcome.err, outcome.err
    assert building.command("verify", f"gs://{bucket}/out").status == 0
    assert building.command("export", reviews(), "--to", "parquet", "--output", tmp_path / "out").status == 0
    assert gcs.objects(bucket, "out/") == building.files(tmp_path / "out")
