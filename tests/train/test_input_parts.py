"""A training run resumes with the same batches on other hosts, or reports what it needs."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from pipelines.train.device_backend import InputParts
from tfrecord_io.errors import FingerprintMismatchError


def made(context: tf.distribute.InputContext) -> tf.data.Dataset:
    parts_per_host = context.num_replicas_in_sync // context.num_input_pipelines
    first = context.input_pipeline_id * parts_per_host
    return tf.data.Dataset.range(3 * parts_per_host).map(
        lambda at: ({"step": tf.fill([2], at // parts_per_host)}, tf.fill([2], first + at % parts_per_host))
    )


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "now"), [(1, 4), (2, 1), (2, 4), (4, 2), (6, 4), (12, 3)])
def test_the_parts_are_those_of_the_hosts_that_began(hosts: int, now: int) -> None:
    began = InputParts(hosts=hosts, parts=12)
    assert InputParts(hosts=now, parts=now).kept({"hosts": hosts, "parts": 12}, order="hosts", model_dir="out") == began
    streams = [began.read(made, host=host, hosts=now).as_numpy_iterator() for host in range(now)]
    for step in range(3):
        read = [next(stream) for stream in streams]
        assert {len(parts) for _, parts in read} == {12 // now}
        assert np.concatenate([parts for _, parts in read]).tolist() == [[part] * 2 for part in range(12)]
        assert {int(number) for inputs, _ in read for number in inputs["step"].ravel()} == {step}
    assert list(itertools.chain(*streams)) == []


@pytest.mark.parametrize(("parts", "fitting"), [(0, "4"), (8, "1 or 2 or 4 or 8")], ids=["TensorFlow", "JAX"])
def test_hosts_that_cannot_go_on_are_told_which_can(parts: int, fitting: str) -> None:
    now, recorded = InputParts(hosts=3, parts=3 * bool(parts)), {"hosts": 4, "parts": parts}
    assert now.kept(recorded, order="global", model_dir="out") == now
    with pytest.raises(FingerprintMismatchError) as caught:
        now.kept(recorded, order="hosts", model_dir="out")
    assert "--model-dir out contains a training run that began on 4 hosts, but this run has 3" in caught.value.cause
    assert caught.value.cause.endswith(f"expected {fitting}")
    assert "--order global" in caught.value.remedy
