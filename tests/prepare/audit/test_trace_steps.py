"""From a step of a training to its source rows: the rows that the reader gives, found without TensorFlow."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.audit import reopened_dataset, trace
from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.audit.trace import Tracer
from tests import building
from tests.building import command, read_manifest
from tfrecord_io import random_access

PLANTED = "the planted row that makes the loss jump"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 rows in several shards, one of which is planted."""
    rows = [{"text": PLANTED if row == 123 else f"an ordinary row, number {row}"} for row in range(300)]
    data = building.source(tmp_path_factory.mktemp("planted") / "data", train=rows)
    return building.built(data, shard_size="5kB")


def run_folder(tmp_path: Path, root: Path, **changes: Any) -> Path:
    """What a training leaves in its folder before its first step."""
    content = {
        "data": read_manifest(root).fingerprint,
        "task": "mlm",
        "global_batch_size": 16,
        "seed": 3,
        "train_split": "train",
        "order": "global",
        **changes,
    }
    (tmp_path / "run.json").write_text(json.dumps(content))
    return tmp_path


def planted_step(root: Path) -> tuple[int, int]:
    """Step, from 1, and place of the planted row's batch, by its ids in what the reader gives."""
    batches = random_access.global_batches(random_access.open(root)["train"], global_batch_size=16, seed=3)
    ids = load_tokenizer(str(root))(PLANTED, padding="max_length", max_length=32)["input_ids"]
    found = ((step, (batches[step - 1]["input_ids"] == ids).all(axis=1)) for step in range(1, 20))
    return next((step, int(hits.argmax())) for step, hits in found if hits.any())


def test_a_planted_row_is_found_by_the_step_that_trains_on_it(tmp_path: Path, root: Path) -> None:
    step, place = planted_step(root)
    outcome = command("trace", root, "--step", step, "--run", run_folder(tmp_path, root), "--json")
    assert outcome.status == 0, outcome.err
    assert f"text: {PLANTED}" in outcome.err
    found = json.loads(outcome.out)
    assert len(found) == 16
    assert [at for at, each in enumerate(found) if each["rows"][0]["texts"]["text"] == PLANTED] == [place]
    assert found[place]["rows"][0]["row"] == 123


def test_every_row_of_an_epoch_is_traced_as_it_is_read(tmp_path: Path, root: Path) -> None:
    manifest = read_manifest(root)
    assert len(manifest.splits["train"].shards) > 2
    tracer = Tracer(reopened_dataset.reopen(str(root), manifest))
    run = str(run_folder(tmp_path, root, global_batch_size=30, seed=1))
    found = [
        each for step in range(1, 11) for each in trace.trace_step(tracer, manifest, root=str(root), run=run, step=step)
    ]
    assert sorted(each.rows[0].row for each in found) == list(range(300))
    rows = random_access.open(root)["train"]
    batches = random_access.global_batches(rows, global_batch_size=30, seed=1)
    names = [shard.name for shard in manifest.splits["train"].shards]
    firsts = np.cumsum([0, *(shard.num_examples for shard in manifest.splits["train"].shards)])
    numbers = [firsts[names.index(each.shard)] + each.record for each in found]
    assert numbers == [int(row) for step in range(10) for row in batches.indices(step)]


@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        ({"order": "hosts"}, "order 'hosts', expected 'global'", "--order global"),
        ({"data": "0" * 64}, "trained on data with fingerprint 000000000000", "the folder that was trained on"),
        ({"seed": "three"}, "is not what a training wrote", "copy it again"),
    ],
)
def test_what_cannot_be_followed_is_said(
    tmp_path: Path, root: Path, changes: dict[str, Any], cause: str, remedy: str
) -> None:
    found = command("trace", root, "--step", 3, "--run", run_folder(tmp_path, root, **changes)).error
    assert cause in found[0]
    assert remedy in found[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--step", 3], "missing option '--run'"),
        (["--step", 3, "--shard", 0, "--run", "x"], "--shard together with --step"),
        (["--split", "train", "--shard", 0], "missing option '--record'"),
        (["--split", "train", "--shard", 0, "--record", 0, "--run", "x"], "--run together with --split"),
        (["--step", 3, "--run", "no-folder"], "no such file"),
    ],
)
def test_wrong_options_are_refused(root: Path, options: list[object], said: str) -> None:
    outcome = command("trace", root, *options)
    assert outcome.status in (1, 2)
    assert said in " ".join(outcome.err.split())
