"""Training the head alone, and taking only the architecture of a preset."""

from __future__ import annotations

from pathlib import Path

import keras_hub
import numpy as np
import pytest

from tests.train import training
from tests.train.stepping import prepared
from tfrecord_io import reader
from tfrecord_io.reader import Data


@pytest.fixture(scope="module")
def data() -> Data:
    """The reviews."""
    return reader.open(training.data())


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with another vocabulary, as KerasHub saves it."""
    folder = tmp_path_factory.mktemp("preset")
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=50, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16, max_sequence_length=32
    )
    backbone.save_to_preset(str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("task", "trained"), [("classify", 2), ("mlm", 4)])
def test_only_the_head_changes(data: Data, task: str, trained: int) -> None:
    replica_step, batch = prepared(data, task=task, model="bert-tiny", freeze_backbone=True)
    model = replica_step.model
    before = [each.numpy() for each in model.variables]
    replica_step.train(batch)
    changed = [each.path for each, old in zip(model.variables, before, strict=True) if np.any(each.numpy() != old)]
    changed = [path for path in changed if "seed_generator" not in path]
    assert len(changed) == len(model.trainable_variables) == trained
    assert not [path for path in changed if "transformer" in path or "embedding" in path]


@pytest.mark.parametrize(("task", "model"), [("clm", "gpt2-tiny"), ("classify", "tests.train.small:bag")])
def test_without_a_head_of_its_own_that_is_refused(tmp_path: Path, task: str, model: str) -> None:
    outcome = training.command(tmp_path, task=task, model=model, freeze_backbone=True)
    assert outcome.status == 2
    assert outcome.error[0].startswith("--freeze-backbone with --")


@pytest.mark.slow
def test_a_presets_architecture_gets_the_vocabulary_of_the_data(tmp_path: Path, preset: Path) -> None:
    refused = training.command(tmp_path / "pretrained", model=preset)
    assert "its vocabulary ends at 50" in refused.error[0]
    outcome = training.command(tmp_path / "model", model=preset, from_scratch=True, steps=2)
    assert outcome.status == 0, outcome.err
    again = training.command(tmp_path / "model", model=preset, steps=4)
    assert "from_scratch True, now None" in again.error[0]


def test_a_function_of_the_users_says_itself_where_weights_come_from(tmp_path: Path) -> None:
    cause, _ = training.command(tmp_path, from_scratch=True).error
    assert cause.startswith("--from-scratch with --model tests.train.small:bag")
