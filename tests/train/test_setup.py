"""Checks before a device is touched. There is no TPU here, so a test that reached one would fail."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.train import checkpoints, setup
from pipelines.train.config import TrainConfig
from tests.train import training
from tfrecord_io.errors import FingerprintMismatchError, OutputError

pytestmark = pytest.mark.slow


def test_an_input_that_is_fit_for_a_tpu_is_passed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": str(training.data()), "task": "classify", "model": "bert-tiny"}
    config = TrainConfig(**options, model_dir=str(tmp_path / "model"), tpu="local")
    found = setup.check(config)
    assert (found.target.kind, found.eval_split, found.warnings) == ("tpu-vm", "validation", ())
    assert found.config.precision == "bfloat16"
    assert setup.check(dataclasses.replace(config, precision="float32")).config.precision == "float32"
    assert setup.check(dataclasses.replace(config, tpu="none")).config.precision == "float32"
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("content", [b"[1]", b"{", b"[" * 100_000, b'{"seed": NaN}', b'{"seed": 1}' + b" " * (1 << 20)])
def test_a_folder_with_a_file_that_no_training_wrote_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(OutputError, match="it cannot be used"):
        checkpoints.claimed(str(tmp_path), identity={"seed": 1}, writes=True)


def test_a_training_goes_on_in_its_own_order(tmp_path: Path) -> None:
    hosts = TrainConfig(data="d", task="mlm", model="bert-tiny", order="hosts").identity()
    in_global = TrainConfig(data="d", task="mlm", model="bert-tiny", order="global").identity()
    (tmp_path / "run.json").write_text(json.dumps(hosts))
    assert checkpoints.claimed(str(tmp_path), identity=hosts, writes=True) == hosts
    with pytest.raises(FingerprintMismatchError, match="order 'hosts', now 'global'"):
        checkpoints.claimed(str(tmp_path), identity=in_global, writes=True)


def test_options_that_decide_no_batch_may_change_if_that_is_asked_for(tmp_path: Path) -> None:
    one, other = ({"seed": 1, "learning_rate": rate, "backend": "jax"} for rate in (0.1, 0.2))
    (tmp_path / "run.json").write_text(json.dumps({**one, "input_parts": 8}))
    with pytest.raises(FingerprintMismatchError, match=r"learning_rate 0\.1, now 0\.2") as caught:
        checkpoints.claimed(str(tmp_path), identity=other, writes=True)
    assert "--allow-changes" in caught.value.remedy
    found = checkpoints.claimed(str(tmp_path), identity=other, writes=True, may_change=True)
    assert found == json.loads((tmp_path / "run.json").read_text()) == {**other, "input_parts": 8}


def test_two_trainings_are_not_at_work_in_one_folder(tmp_path: Path) -> None:
    with checkpoints.locked(str(tmp_path / "model")):
        refused = training.command(tmp_path / "model")
        assert refused.status == 1
        assert refused.error[0] == f"--model-dir {tmp_path}/model: another training is at work in it"
    with checkpoints.locked(str(tmp_path / "model")), checkpoints.locked("gs://bucket/model"):
        pass
