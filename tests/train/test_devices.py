"""Which accelerator is meant, and why it cannot be reached."""

import contextlib
import socket
import sys
from pathlib import Path

import pytest

from pipelines.train import targets
from pipelines.train.errors import DeviceError
from pipelines.train.on_tensorflow import backend
from pipelines.train.targets import Target
from tests.support import processes
from tests.train import training
from tfrecord_io.errors import ConfigError

ADDRESS = "grpc://10.0.0.2:8470"


@pytest.mark.parametrize(
    ("tpu", "environment", "chips", "kind", "address"),
    [
        ("none", {"TPU_NAME": "a"}, True, "host", ""),
        ("local", {"TPU_NAME": "a"}, False, "tpu-vm", ""),
        ("my-tpu", {"TPU_NAME": "a"}, True, "tpu-node", "my-tpu"),
        (ADDRESS, {}, False, "tpu-node", ADDRESS),
        ("auto", {"TPU_NAME": "a", "COLAB_TPU_ADDR": "b:1"}, False, "tpu-node", "a"),
        ("auto", {"TPU_NAME": "a"}, True, "tpu-vm", ""),  # as GKE and Ray set it
        ("auto", {"TPU_NAME": "10.0.0.2:8470"}, True, "tpu-node", ADDRESS),
        ("10.0.0.2:8470", {}, False, "tpu-node", ADDRESS),
        ("auto", {"TPU_NAME": ADDRESS}, False, "tpu-node", ADDRESS),
        ("auto", {"TPU_NAME": "local"}, False, "tpu-vm", ""),
        ("auto", {"TPU_GRPC_URL": ADDRESS, "COLAB_TPU_ADDR": "b:1"}, False, "tpu-node", ADDRESS),
        ("auto", {"COLAB_TPU_ADDR": "10.0.0.2:8470"}, False, "tpu-node", ADDRESS),
        ("auto", {"TPU_NAME": ""}, True, "tpu-vm", ""),
        ("auto", {}, False, "host", ""),
    ],
)
def test_the_first_named_counts(tpu: str, environment: dict[str, str], chips: bool, kind: str, address: str) -> None:
    target = targets.choose(tpu, environment=environment, chips_here=chips)
    assert (target.kind, target.address) == (kind, address)


@pytest.mark.parametrize(
    "text", ['{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}', "{", "[]"]
)
def test_a_cluster_of_tensorflow_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"TF_CONFIG=.*each process would train alone"):
        targets.require_whole_cluster({"TF_CONFIG": text})


def test_a_cluster_of_one_process_is_none() -> None:
    targets.require_whole_cluster({})
    targets.require_whole_cluster({"TF_CONFIG": '{"cluster": {"chief": ["a:1"]}}'})
    jax = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}
    targets.require_whole_cluster({"TF_CONFIG": "{", **jax})
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        with pytest.raises(ConfigError, match=f"JAX_COORDINATOR_ADDRESS=a:1, but {name}"):
            targets.require_whole_cluster({**jax, name: ""})


@pytest.mark.parametrize("tpu", ["http://10.0.0.2:8470", "grpc://10.0.0.2", "", "cpu", "GPU"])
def test_what_is_no_address_is_refused(tpu: str) -> None:
    with pytest.raises(ConfigError, match=r"expected auto, local, none.*; .*--tpu none uses this machine's GPUs"):
        targets.choose(tpu, environment={}, chips_here=False)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Could not lookup TPU metadata from name 'x'. Exception: <HttpError 404 ... >", "the TPU does not exist"),
        ("<HttpError 403 when requesting ... The caller does not have permission>", "no permission"),
        ("Could not lookup TPU metadata from name 'x'. Exception: <HttpError 403 Forbidden>", "no permission"),
        ("Missing runtime dependency on the Google API client. Run `pip install cloud-tpu-client`", "not installed"),
        ("googleapiclient and oauth2client must be installed before using the TPU cluster resolver", "not installed"),
        ('TPU "x" is not yet ready; state: "CREATING"', "or is not ready"),
        ("Op type not registered 'XlaSplitND' in binary running on n-1234", "could not be started"),
        ("failed to connect to all addresses; last error: UNKNOWN", "cannot be reached"),
        ("something that nobody has seen before", "could not be started"),
    ],
)
def test_each_way_to_fail_has_its_own_cause(message: str, cause: str) -> None:
    error = backend.explained(ValueError(message), target="tpu-node x")
    assert cause in error.cause
    assert message[:60] in error.cause
    assert error.remedy


def test_an_address_where_nothing_listens_is_known_at_once() -> None:
    with contextlib.closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(DeviceError, match="nothing answers"):
        backend.connect(Target(kind="tpu-node", address=f"grpc://127.0.0.1:{port}", chosen_by="test"))


@pytest.mark.parametrize("data", ["gs://bucket/data", "/data"])
def test_a_local_path_on_a_tpu_node_is_refused_before_anything_starts(tmp_path: Path, data: str) -> None:
    outcome = training.command(tmp_path / "model", tpu=ADDRESS, data=data)
    assert outcome.status == 2
    cause, _ = outcome.error
    assert cause.startswith("--data /data" if data == "/data" else f"--model-dir {tmp_path}/model")
    assert "another machine" in cause
    assert not (tmp_path / "model").exists()


# The input is looked at before, which uses TensorFlow.
CONNECT = """
import tensorflow as tf
from pipelines.train.on_tensorflow import backend
from pipelines.train.targets import Target
from tfrecord_io.errors import PrepError

assert sum(int(number) for number in tf.data.Dataset.range(3)) == 3
server = tf.distribute.Server({"worker": ["127.0.0.1:0"]}, job_name="worker", task_index=0)
try:
    backend.connect(Target(kind="tpu-node", address=server.target, chosen_by="test"))
except PrepError as error:
    print(type(error).__name__, error.cause)
"""


@pytest.mark.slow
def test_a_server_without_tpu_is_told_from_a_tpu() -> None:
    words = [sys.executable, "-c", CONNECT]
    done = processes.run(words)
    assert done.stdout.startswith("DeviceError tpu-node grpc://127.0.0.1:"), done.stderr
    assert "the TPU does not exist" in done.stdout


@pytest.mark.parametrize(("tpu", "warned"), [("auto", True), ("none", False)])
def test_a_tpu_that_was_looked_for_in_vain_is_a_warning(tpu: str, warned: bool) -> None:
    target = targets.choose(tpu, environment={}, chips_here=False)
    lines = targets.missed_tpu(target, f"training on {targets.hardware('CPU', 1)}")
    assert bool(lines) is warned
    if warned:
        cause, remedy = lines
        assert cause.startswith("warning: no TPU found (TPU_NAME, ")
        assert cause.endswith("training on the CPU")
        assert "--tpu none" in remedy
