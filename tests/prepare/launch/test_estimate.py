"""`plan` foretells what `build` makes, writes nothing, and warns of a dataset that would be nearly all padding."""

import json
import re
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.launch.estimate import Cost, compare
from tests import building
from tests.building import REVIEWS
from tfrecord_io.shown import duration


def planned(*options: object, dataset: Path = REVIEWS) -> list[dict[str, Any]]:
    outcome = building.command("plan", dataset, "--tokenizer", building.tokenizer(), "--json", *options)
    assert outcome.status == 0, outcome.err
    splits: list[dict[str, Any]] = json.loads(outcome.out)
    return splits


def test_the_fields_of_a_plan_are_these() -> None:
    (split,) = planned("--split", "train")
    fields = "split rows rows_rejected rows_filtered rows_in_other_splits shards num_bytes num_tokens seconds engine"
    fields += " fim token_percentiles side_percentiles layouts functions chats row requests filtered"
    assert split.keys() == set(fields.split())
    assert list(split["token_percentiles"]) == ["5", "25", "50", "75", "95", "99", "100"]
    values = list(split["token_percentiles"].values())
    assert values == sorted(values)
    names = {"layout", "length", "lengths", "records", "padding", "tokens_cut", "rows_cut", "waste"}
    assert {frozenset(cost) for cost in split["layouts"]} == {frozenset(names)}
    lengths = [("pad", 64), ("pad", 128), ("pad", 256), ("pad", 512)]
    lengths += [("pad to 24,32,48,112", 112), ("concat", 128), ("pack", 128)]
    assert [(cost["layout"], cost["length"]) for cost in split["layouts"]] == lengths


def test_rejected_rows_are_counted_but_do_not_stop_a_plan(tmp_path: Path) -> None:
    rows = [{"text": None if index % 2 else "a text"} for index in range(10)]
    (split,) = planned(dataset=building.source(tmp_path / "data", train=rows))
    assert (split["rows"], split["rows_rejected"]) == (10, 5)


def test_people_see_tables_on_stdout_or_beside_json_on_stderr() -> None:
    outcome = building.command("plan", REVIEWS, "--tokenizer", building.tokenizer())
    with_json = building.command("plan", REVIEWS, "--tokenizer", building.tokenizer(), "--json")
    assert json.loads(with_json.out)[0]["split"] == "train"
    for shown in ("estimated output", "tokens in a row", "validation, by layout", "320", "concat *"):
        assert shown in outcome.out
        assert shown not in outcome.err
        assert shown in with_json.err


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (119.9, "119.9 s"), (720, "12 min"), (12_000, "3 h 20 min"), (4e6, "1,111 h 7 min")],
)
def test_durations_are_read_at_a_glance(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_time_and_space_are_compared_with_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10_000))
    plan = building.command("plan", REVIEWS, *building.options(tmp_path / "out"))
    assert "of this machine: about " in plan.out
    assert "of 10.0 kB free: not enough, choose an --output on another disk" in plan.out
    build = building.command("build", REVIEWS, *building.options(tmp_path / "out"))
    assert re.search(r"out: the shards take about 0\.\d+ GB, but 0\.000 GB are free", build.error[0])
    assert not [*(tmp_path / "out").glob("*.tfrecord")]


def costs_of(*row_tokens: int) -> dict[tuple[str, int], Cost]:
    every = compare(np.array(row_tokens), rows=len(row_tokens), length=64, longest=256, joined=True)
    return {(cost.layout, cost.length): cost for cost in every}


def test_a_length_costs_padding_or_cuts_and_waste_is_both_for_each_token() -> None:
    costs = costs_of(16, 64, 256)
    padded = [("pad", 64), ("pad", 128), ("pad", 256), ("pad to 16,64", 64)]
    assert list(costs) == [*padded, ("concat", 64), ("pack", 64)]
    short, long = costs["pad", 64], costs["pad", 256]
    assert short.padding == pytest.approx(1 - (16 + 64 + 64) / (3 * 64))
    assert short.tokens_cut == pytest.approx(192 / 336)
    assert short.rows_cut == pytest.approx(1 / 3)
    assert long.padding == pytest.approx(1 - 336 / (3 * 256))
    assert (long.tokens_cut, long.rows_cut) == (0, 0)
    assert short.waste == pytest.approx((3 * 64 - 144 + 192) / 336)
    assert long.waste == pytest.approx((3 * 256 - 336) / 336)
    assert costs["concat", 64].waste == 0


def test_with_several_lengths_each_row_is_padded_to_the_smallest_that_holds_it() -> None:
    cost = costs_of(10, 16, 30, 60, 300)["pad to 16,32,64", 64]
    assert cost.padding == pytest.approx(1 - (10 + 16 + 30 + 60 + 64) / (16 + 16 + 32 + 64 + 64))
    assert cost.tokens_cut == pytest.approx(236 / 416)
    assert cost.rows_cut == pytest.approx(1 / 5)


def test_rows_that_may_not_be_joined_are_compared_with_padding_only() -> None:
    every = compare(np.array([10, 16, 30]), rows=3, length=64, longest=256, joined=False)
    assert {cost.layout for cost in every if not cost.layout.startswith("pad")} == set()


def test_packing_wastes_what_no_document_fits_into() -> None:
    cost = costs_of(40, 40, 20, 10, 64)["pack", 64]
    assert cost.records == 3
    assert cost.padding == pytest.approx(1 - 174 / (3 * 64))
    assert cost.tokens_cut == 0


def warnings(command: str, *options: object, dataset: Path = REVIEWS) -> list[str]:
    outcome = building.command(command, dataset, "--tokenizer", building.tokenizer(), *options)
    assert outcome.status == 0, outcome.err
    return [line for line in outcome.err.splitlines() if line.startswith("warning") and "padding" in line]


def test_a_plan_of_nearly_all_padding_says_so_once_for_all_splits() -> None:
    (warning,) = warnings("plan", "--max-length", 2000)
    assert "98.6 % of the tokens in records would be padding" in warning
    assert warning.endswith("give --layout pack, --bucket-lengths auto:4, or a smaller --max-length")


def test_a_build_says_so_but_not_when_it_goes_on_with_an_old_plan(tmp_path: Path) -> None:
    options = ("--max-length", 1000, "--split", "validation", "--output", tmp_path / "out")
    assert len(warnings("build", *options)) == 1
    assert warnings("build", *options) == []


@pytest.mark.parametrize("options", [("--max-length", 64), ("--max-length", 1000, "--layout", "concat")])
def test_nothing_is_said_where_there_is_little_or_rows_are_joined(options: tuple[object, ...]) -> None:
    assert warnings("plan", "--split", "validation", *options) == []


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        ([1, 2, 3, 4, 5], "labels are whole numbers from 1 to 5, which"),
        ([-1, 1], "labels are whole numbers from -1 to 1, which"),
        ([0, 2], "labels are whole numbers from 0 to 2, which"),
        ([0, 1, 2], ""),
    ],
)
def test_labels_that_are_no_class_ids_are_told_before_the_build(tmp_path: Path, labels: list[int], note: str) -> None:
    rows = [{"text": "good", "stars": labels[number % len(labels)]} for number in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--tokenizer", building.tokenizer(), "--label-column", "stars", "--max-length", 8)
    outcome = building.command("plan", tmp_path / "rows.jsonl", *options)
    assert outcome.status == 0, outcome.err
    assert [line.partition(", ")[0] + ", which" for line in outcome.err.splitlines() if "whole numbers" in line] == (
        [f"warning: {note}"] if note else []
    )
    assert ("--label-classes" in outcome.err) == bool(note)
    assert "whole numbers" not in building.command("plan", tmp_path / "rows.jsonl", *options, "--label-classes").err
