"""From a loss spike to its row: one row with an absurd label is planted, trained on, and found by `trace --step`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import building
from tests.train import training

pytestmark = pytest.mark.slow

ROWS, BATCH, PLANTED = 300, 16, 123


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with scores of 1 to 5 in several shards; one has the score of another scale."""
    rows = [{"text": f"an ordinary row, number {row}", "score": 1.0 + row % 5} for row in range(ROWS)]
    rows[PLANTED] = {"text": "I would buy it again, 9000 of 9000", "score": 9000.0}
    folder = building.source(tmp_path_factory.mktemp("planted") / "data", train=rows)
    return building.built(folder, label_column="score", max_length=16, shard_size="5kB")


def test_the_step_of_the_highest_loss_leads_to_the_planted_row(data: Path, tmp_path: Path) -> None:
    steps = ROWS // BATCH  # less than an epoch
    assert len(building.read_manifest(data).splits["train"].shards) > 2
    changes = {"model": "tests.train.small:score", "order": "global", "steps": steps, "seed": 7}
    trained = training.command(tmp_path, data=data, **changes)
    assert trained.status == 0, trained.err
    losses = training.losses(trained.out)
    spike = max(losses, key=losses.__getitem__)
    assert losses[spike] > 100 * sorted(losses.values())[-2], "one step stands out"

    traced = building.command("trace", data, "--step", spike, "--run", tmp_path, "--json")
    assert traced.status == 0, traced.err
    rows = [each["traced"]["rows"][0] for each in json.loads(traced.out)]
    assert len(rows) == BATCH
    assert [row["texts"]["text"] for row in rows if row["row"] == PLANTED] == ["I would buy it again, 9000 of 9000"]

    before = building.command("trace", data, "--step", spike - 1, "--around", spike - 2, "--run", tmp_path, "--json")
    assert before.status == 0, before.err
    assert PLANTED not in [each["traced"]["rows"][0]["row"] for each in json.loads(before.out)]
