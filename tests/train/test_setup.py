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

MALFORMED_STAGES: list[Any] = [5, [], {"x": [1.0, 1.0]}, {"-1": [1.0]}, {"9": 1.0}, {"9": ["a"]}]
MALFORMED_NUMBERS: list[Any] = [5, {}, {"hosts": 1}, {"steps": "a"}]


def test_an_input_that_is_fit_for_a_tpu_is_passed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": str(training.data()), "task": "classify", "model": "bert-tiny"}
    config = TrainConfig(**options, model_dir=str(tmp_path / "model"), tpu="local")
    job = setup.check(config)
    assert (job.target.kind, job.eval_split, job.warnings) == ("tpu-vm", "validation", ())
    assert job.config.precision == "bfloat16"
    assert setup.check(dataclasses.replace(config, precision="float32")).config.precision == "float32"
    assert setup.check(dataclasses.replace(config, tpu="none")).config.precision == "float32"
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("content", [b"[1]", b"{", b"[" * 100_000, b'{"seed": NaN}'])
def test_a_folder_with_a_file_that_no_training_wrote_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(OutputError, match="the folder cannot be used"):
        checkpoints.claimed(str(tmp_path), identity={"seed": 1}, writes=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("stages", stages) for stages in MALFORMED_STAGES),
        *((key, numbers) for key in ("input_parts", "course") for numbers in MALFORMED_NUMBERS),
        ("input_parts", {"hosts": -1, "parts": 1}),
        ("course", {"steps": 9, "warmup": None}),
    ],
)
def test_a_malformed_value_is_refused_with_the_name_of_the_file(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"seed": 1, key: value}))
    with pytest.raises(OutputError, match=r"run\.json: "):
        checkpoints.claimed(str(tmp_path), identity={"seed": 1, "stages": {"9": [1.0, 1.0]}}, writes=True)


def test_a_training_goes_on_in_its_own_order(tmp_path: Path) -> None:
    hosts = TrainConfig(data="d", task="mlm", model="bert-tiny", order="hosts").identity()
    in_global = TrainConfig(data="d", task="mlm", model="bert-tiny", order="global").identity()
    (tmp_path / "run.json").write_text(json.dumps(hosts))
    assert checkpoints.claimed(str(tmp_path), identity=hosts, writes=True) == hosts
    with pytest.raises(FingerprintMismatchError, match="order 'hosts', now 'global'"):
        checkpoints.claimed(str(tmp_path), identity=in_global, writes=True)


def test_options_that_decide_no_batch_may_change_if_that_is_asked_for(tmp_path: Path) -> None:
    one, other = ({"seed": 1, "learning_rate": rate, "backend": "jax"} for rate in (0.1, 0.2))
    parts = {"input_parts": {"hosts": 1, "parts": 8}}
    (tmp_path / "run.json").write_text(json.dumps({**one, **parts}))
    with pytest.raises(FingerprintMismatchError, match=r"learning_rate 0\.1, now 0\.2.*; .*--allow-changes"):
        checkpoints.claimed(str(tmp_path), identity=other, writes=True)
    identity = checkpoints.claimed(str(tmp_path), identity=other, writes=True, may_change=True)
    assert identity == json.loads((tmp_path / "run.json").read_text()) == {**other, **parts}


def test_two_trainings_are_not_at_work_in_one_folder(tmp_path: Path) -> None:
    with checkpoints.locked(str(tmp_path / "model")):
        refused = training.command(tmp_path / "model")
        assert refused.status == 1
        assert refused.error[0] == f"--model-dir {tmp_path}/model: another training run is using this folder"
    with checkpoints.locked(str(tmp_path / "model")), checkpoints.locked("gs://bucket/model"):
        pass


def test_later_stages_of_a_mixture_may_change_and_past_ones_may_not(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-1200.index").write_bytes(b"")
    old, later, past = ({"seed": 1, "stages": {"1000": [1.0, one], "1200": [other, 1.0]}} for one, other in PAIRS)
    (tmp_path / "run.json").write_text(json.dumps(old))
    assert checkpoints.claimed(str(tmp_path), identity=later, writes=True) == later
    with pytest.raises(FingerprintMismatchError, match="weights from steps"):
        checkpoints.claimed(str(tmp_path), identity=past, writes=True)


PAIRS = ((1.0, 1.0), (1.0, 3.0), (2.0, 3.0))


def test_weights_from_are_stages() -> None:
    config = TrainConfig(data=("a", "b"), task="clm", model="m", weights="0.8,0.2", weights_from=("1000:0.5,0",))
    assert config.data_stages == {0: (0.8, 0.2), 1000: (0.5, 0.0)}
