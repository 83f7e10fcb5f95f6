"""`plan` foretells what `build` makes, and writes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.estimate import length_costs
from tests import building
from tests.building import REVIEWS, read_manifest, reviews


def planned(*options: object, dataset: Path = REVIEWS) -> list[dict[str, Any]]:
    outcome = building.command("plan", dataset, "--tokenizer", building.tokenizer(), "--json", *options)
    assert outcome.status == 0, outcome.err
    found: list[dict[str, Any]] = json.loads(outcome.out)
    return found


@pytest.mark.parametrize("shard_size", ["20kB", "100MB"])
def test_the_plan_is_what_the_build_makes(shard_size: str) -> None:
    found = planned("--label-column", "label", "--max-length", 32, "--shard-size", shard_size)
    splits = read_manifest(reviews(shard_size=shard_size)).splits
    assert [each["split"] for each in found] == list(splits)
    for each in found:
        split = splits[each["split"]]
        assert each["rows"] == split.ledger.rows_in
        assert each["rows_rejected"] == 0
        assert each["shards"] == len(split.shards)
        assert each["num_bytes"] == pytest.approx(split.num_bytes, rel=0.02)
        assert each["num_tokens"] == pytest.approx(split.num_tokens, rel=0.02)


def test_the_fields_of_a_plan_are_these() -> None:
    (found,) = planned("--split", "train")
    assert found.keys() == {
        *("split", "rows", "rows_rejected", "shards", "num_bytes", "num_tokens"),
        *("seconds", "token_percentiles", "lengths"),
    }
    assert list(found["token_percentiles"]) == ["5", "25", "50", "75", "95", "99", "100"]
    values = list(found["token_percentiles"].values())
    assert values == sorted(values)
    assert found["lengths"][0].keys() == {"length", "padding", "tokens_cut", "rows_cut"}
    assert [cost["length"] for cost in found["lengths"]] == [64, 128, 256, 512]


def test_planning_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planned()
    assert os.listdir(tmp_path) == []


def test_rejected_rows_are_counted_but_do_not_stop_a_plan(tmp_path: Path) -> None:
    rows = [{"text": None if index % 2 else "a text"} for index in range(10)]
    (found,) = planned(dataset=building.source(tmp_path / "data", train=rows))
    assert (found["rows"], found["rows_rejected"]) == (10, 5)


def test_people_see_tables_on_stderr_and_nothing_on_stdout() -> None:
    outcome = building.command("plan", REVIEWS, "--tokenizer", building.tokenizer())
    assert outcome.out == ""
    for shown in ("would come out", "train: tokens in a row", "validation, with --layout pad", "320"):
        assert shown in outcome.err


def test_a_length_costs_padding_or_cuts() -> None:
    costs = {cost.length: cost for cost in length_costs(np.array([16, 64, 256]), longest=256)}
    assert list(costs) == [64, 128, 256]
    assert costs[64].padding == pytest.approx(1 - (16 + 64 + 64) / (3 * 64))
    assert costs[64].tokens_cut == pytest.approx(192 / 336)
    assert costs[64].rows_cut == pytest.approx(1 / 3)
    assert costs[256].padding == pytest.approx(1 - 336 / (3 * 256))
    assert (costs[256].tokens_cut, costs[256].rows_cut) == (0, 0)


def test_rows_without_a_token_cost_padding_alone() -> None:
    (cost,) = length_costs(np.zeros(4, np.int64), longest=10)
    assert (cost.padding, cost.tokens_cut, cost.rows_cut) == (1, 0, 0)
