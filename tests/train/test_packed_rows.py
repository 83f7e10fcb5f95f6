"""Rows that hold several documents: only for models that keep these apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import building
from tests.train import training

CHANGES = {"task": "clm", "steps": 4, "log_every": 2, "eval_split": "validation"}


@pytest.fixture(scope="module")
def packed() -> Path:
    return building.built(building.REVIEWS, layout="pack", max_length=64)


def test_a_backbone_that_would_see_across_documents_is_refused(tmp_path: Path, packed: Path) -> None:
    outcome = training.command(tmp_path, data=packed, model="gpt2-tiny", **CHANGES)
    cause, remedy = outcome.error
    assert "has several documents in a row" in cause
    assert "segment_attention_mask" in remedy


@pytest.mark.slow
def test_a_model_that_keeps_documents_apart_learns_from_them(tmp_path: Path, packed: Path) -> None:
    outcome = training.command(tmp_path, data=packed, model="tests.train.small:apart", **CHANGES)
    assert outcome.status == 0, outcome.err
    losses = training.losses(outcome.out)
    assert losses[4] < losses[2]
