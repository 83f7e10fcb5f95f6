"""A smaller model where its depth is not the point: tracing and XLA take half as long for half of the layers."""

import pytest

from pipelines.train.models import backbones


@pytest.fixture
def one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models named *-tiny that are built in this process have one layer."""
    monkeypatch.setitem(backbones._SIZES, "tiny", (1, 2, 128))
