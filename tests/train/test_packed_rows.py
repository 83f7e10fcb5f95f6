"""Rows that hold several documents: only for models that keep these apart."""

from pathlib import Path
from typing import Any

import keras_hub
import numpy as np
import pytest

from pipelines.train.config import TrainConfig
from pipelines.train.models import backbones
from tests import building
from tests.tfrecord_io.conftest import make_manifest
from tests.train import training
from tfrecord_io.errors import ConfigError

SIZES = {"vocabulary_size": 100, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
IDS = np.array([[7, 9, 11, 13, 21, 23, 25, 31, 33, 0]])
DOCUMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 3, 0]])
POSITIONS = np.array([[0, 1, 2, 3, 0, 1, 2, 0, 1, 0]])


def alone(backbone: Any, ids: np.ndarray) -> np.ndarray:
    feeds = {"token_ids": ids[None], "padding_mask": np.ones_like(ids)[None]}
    if "segment_ids" in backbone.input:
        feeds["segment_ids"] = np.zeros_like(ids)[None]
    output = backbone(feeds)
    states = output["sequence_output"] if isinstance(output, dict) else output
    return np.asarray(backbone.token_embedding(states, reverse=True))[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BertBackbone", "GPT2Backbone"])
def test_a_document_gets_the_logits_that_it_would_get_alone(kind: str) -> None:
    backbone = getattr(keras_hub.models, kind)(**SIZES, max_sequence_length=10)
    model = backbones.keeping_apart(backbone)
    assert model.name == backbone.name
    left_out = {variable.path for variable in backbone.variables} ^ {variable.path for variable in model.variables}
    assert left_out <= {"pooled_dense/kernel", "pooled_dense/bias"}, "names are the backbone's; none needs its pooler"
    states = model({"token_ids": IDS, "documents": DOCUMENTS, "positions": POSITIONS})
    logits = np.asarray(backbone.token_embedding(states, reverse=True))[0]
    for document in (1, 2, 3):
        mine = DOCUMENTS[0] == document
        np.testing.assert_allclose(logits[mine], alone(backbone, IDS[0][mine]), atol=1e-5)
    whole = alone(backbone, IDS[0])
    assert np.abs(whole[4:8] - logits[4:8]).max() > 1e-3, "without the mask they would differ"
    assert np.isfinite(logits).all(), "padding too"


def test_a_backbone_that_would_see_across_documents_is_refused() -> None:
    backbone = keras_hub.models.DistilBertBackbone(**SIZES)
    config = TrainConfig(data="d", task="mlm", model="distil_bert_base_en")
    with pytest.raises(ConfigError, match=r"has several documents in a row.*; .*segment_attention_mask"):
        backbones.require_apart(backbone, config=config, manifest=make_manifest())


@pytest.mark.slow
@pytest.mark.usefixtures("one_layer")
def test_a_model_that_keeps_documents_apart_learns_from_them(tmp_path: Path) -> None:
    data = building.built(building.REVIEWS, max_length=64, layout="concat", segments=True)
    outcome = training.done(tmp_path, data=data, model="gpt2-tiny", task="clm", log_every=2)
    losses = training.losses(outcome.out)
    assert losses[8] < losses[2]
