"""Taking only the architecture of a preset."""

from __future__ import annotations

from pathlib import Path

import keras_hub
import pytest

from tests.train import training


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
