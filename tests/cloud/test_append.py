"""Appending to a dataset in a bucket: the objects of a local append, byte for byte, also after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import building
from tests.cloud.emulator import Gcs
from tests.prepare.append.appended import build, done, grown, json_lines, numbers
from tests.prepare.append.test_append_stopped import stop_at_second_shard


def test_a_bucket_gets_the_files_of_a_local_append(gcs: Gcs, tmp_path: Path) -> None:
    bucket = gcs.bucket()
    root = f"gs://{bucket}/out"
    source = json_lines(tmp_path / "data" / "train-a.jsonl", range(60)).parent
    done(build(source, root))
    before = gcs.objects(bucket, "out/")
    json_lines(source / "train-b.jsonl", range(60, 100))
    with pytest.MonkeyPatch.context() as patch:
        stop_at_second_shard(patch)
        assert "stopped" in build(source, root, "--append").err
    assert gcs.objects(bucket, "out/")["manifest.json"] == before["manifest.json"]
    done(build(source, root, "--append"))
    assert sorted(numbers(root)) == list(range(100))
    assert building.command("verify", root).status == 0
    after = gcs.objects(bucket, "out/")
    assert all(after[name] == content for name, content in before.items() if name.endswith((".tfrecord", ".offsets")))
    data, local = grown(tmp_path / "local")
    done(build(data, local, "--append"))
    assert {name: content for name, content in after.items() if not name.endswith("source.json")} == {
        name: content for name, content in building.files(local).items() if not name.endswith("source.json")
    }
