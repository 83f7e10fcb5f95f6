"""What is found out before a device is touched. There is no TPU here: whoever got as far as that would say so."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.train import checkpoints, setup
from pipelines.train.config import TrainConfig
from tests import building
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


def test_an_input_that_cannot_go_on_where_training_stopped_is_named_once(tmp_path: Path) -> None:
    # So many rows that going on skips some: up to a whole window of 8,192 is read again.
    rows = [{"text": text, "label": text} for text in ("good", "bad")] * 8_000
    data = building.built(building.source(tmp_path / "rows", train=rows), label_column="label", max_length=4)
    (tmp_path / "model" / "checkpoints" / "ckpt_3").mkdir(parents=True)
    refused = training.command(tmp_path / "model", tpu="local", data=data).error
    assert refused[0].endswith("has a checkpoint of step 3 but no run.json, which says of which training it is")
    given: dict[str, Any] = {
        "data": str(data),
        "task": "classify",
        "model": "tests.train.small:bag",
        "learning_rate": 0.01,
    }
    config = TrainConfig(**given, global_batch_size=4096, precision="bfloat16")
    identity = setup.identity(config, setup.open_data(config))
    checkpoints.write_json(str(tmp_path / "model"), "run.json", identity)
    for index in (data / "index").iterdir():
        index.write_bytes(index.read_bytes()[:-3])
    cause, remedy = training.command(tmp_path / "model", tpu="local", data=data, global_batch_size=4096).error
    assert cause.count(".offsets") == 1
    assert "the input cannot run on this TPU" in cause
    assert "--repair" in remedy


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
