"""How many threads call an encoder while a shard's rows are gathered."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare import storage
from pipelines.prepare.dataset import plan_files
from pipelines.prepare.dataset.reservation import JOB_FILE
from pipelines.prepare.shards import shard_writer
from tests.prepare import stored
from tests.support import seams
from tests.support.tokenizers_zoo import Zoo


class Metered:
    """An encoder that notes how many threads are in it at once."""

    def __init__(self, encoder: Any, *, concurrent: bool) -> None:
        self._encoder, self.concurrent, self.reference = encoder, concurrent, None
        self._lock = threading.Lock()
        self._inside = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, rows: Any) -> Any:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        time.sleep(0.02)
        with self._lock:
            self._inside -= 1
        return self._encoder.encode(rows)


@pytest.mark.parametrize("concurrent", [False, True])
def test_an_encoder_is_called_by_several_threads_only_if_it_can_serve_them(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrent: bool
) -> None:
    seams.put(monkeypatch, shard_batch_bytes=200)
    source = stored.parquet(tmp_path / "data", {"text": ["a small house by the river"] * 200})
    work = stored.work(zoo.path("wordpiece_cased"), source, root=str(tmp_path))
    storage.write_bytes(work.job.work_path(JOB_FILE), b"{}", inside=work.job.root)
    made, _ = stored.plan(work, targets=1)
    plan_files.write(work.job, made, source.groups)
    encoder: Any = Metered(work.encoder, concurrent=concurrent)
    task = plan_files.task_of(work.job, plan_files.key_of(made.tasks()[0]))
    shard_writer.write(task, work.job, encoder, threads=2)
    assert encoder.most == (2 if concurrent else 1)
