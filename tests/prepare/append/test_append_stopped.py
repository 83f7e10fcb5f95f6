"""An append that is stopped leaves the dataset as it was, and the same command finishes it with the same bytes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare import storage
from tests import building
from tests.prepare.append.appended import build, done, grown, json_lines, numbers, stop_at_second_shard
from tests.support import seams
from tfrecord_io.errors import OutputError

Stop = Callable[[pytest.MonkeyPatch], None]


def stop_at_file(name: str) -> Stop:
    write = storage.write_bytes

    def stopping(path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith(f"/{name}"):
            raise OutputError("stopped")
        return write(path, *arguments, **options)

    return lambda patch: seams.put(patch, write_bytes=stopping)


STOPS: dict[str, Stop] = {
    "second shard": stop_at_second_shard,
    "former manifest": stop_at_file("manifest-0.json"),
    "manifest": stop_at_file("manifest.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("stop", STOPS)
def test_the_dataset_is_as_it_was_and_the_same_command_goes_on(tmp_path: Path, stop: str) -> None:
    data, out = grown(tmp_path)
    before = building.shard_bytes(out), (out / "manifest.json").read_bytes()
    whole = Path(shutil.copytree(out, tmp_path / "whole" / "out"))
    done(build(data, whole, "--append"))
    with pytest.MonkeyPatch.context() as patch:
        STOPS[stop](patch)
        assert "stopped" in build(data, out, "--append").err
    assert (out / "manifest.json").read_bytes() == before[1]
    assert {name: content for name, content in building.shard_bytes(out).items() if name in before[0]} == before[0]
    assert sorted(numbers(out)) == list(range(60))
    assert building.command("verify", out).status == 0
    assert done(build(data, out, "--append"))["shards_kept"] > 0
    assert building.files(out) == building.files(whole)
    assert not (out / "dataset_info.json").exists(), "it would name the old shards alone"


@pytest.mark.slow
def test_an_append_of_other_rows_is_refused_until_the_first_is_given_up(tmp_path: Path) -> None:
    data, out = grown(tmp_path)
    whole = Path(shutil.copytree(out, tmp_path / "whole" / "out"))
    with pytest.MonkeyPatch.context() as patch:
        stop_at_second_shard(patch)
        assert build(data, out, "--append").status == 1
    json_lines(data / "train-c.jsonl", range(100, 150))
    cause, remedy = build(data, out, "--append").error
    assert "another append has begun here" in cause
    assert "--append --overwrite" in remedy
    done(build(data, out, "--append", "--overwrite"))
    assert sorted(numbers(out)) == list(range(150))
    done(build(data, whole, "--append"))
    assert building.files(out) == building.files(whole)


@pytest.mark.slow
def test_overwrite_without_append_clears_every_generation(tmp_path: Path) -> None:
    data, out = grown(tmp_path)
    done(build(data, out, "--append"))
    done(build(data, out, "--overwrite"))
    done(build(data, tmp_path / "whole"))
    assert building.files(out) == building.files(tmp_path / "whole")
