"""A TPU Node without the TPU: an isolated TensorFlow server, and a client that has its input made there.

    client ──► tf.distribute.Server        a separate process, with
                                             its own mounts: an empty file system over the client's folder
                                             its own network: only loopback, no way back to the client

The client's connections arrive through an inherited socket, which is still in the client's network. The worker ends
with the client, however the client ends. A program:

    python -m tests.support.isolated_worker client HIDDEN LOCAL REMOTE

reads LOCAL, a dataset below folder HIDDEN, in the client, and REMOTE on the worker, and fails if they differ.
"""

import contextlib
import gc
import hashlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cloud import namespace
from tests.support import limits, processes

_STEPS = 8
CASES: dict[str, dict[str, Any]] = {
    "training": {"split": "train"},
    "training of the second host from a step on": {"split": "train", "host": 1, "start_step": 5},
    "evaluation": {"split": "validation"},
}
"""Arguments of input functions; `host` is one of two."""

_BATCH = 32


def _serve(listening: socket.socket) -> None:
    """The worker: serves a socket of the client's network."""
    import tensorflow as tf

    server = tf.distribute.Server({"worker": ["localhost:0"]}, job_name="worker", task_index=0, protocol="grpc")
    port = int(server.target.rpartition(":")[2])
    threading.Thread(target=_relay, args=(listening, port), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)  # the server has no way to stop


@contextlib.contextmanager
def _worker(hidden: Path) -> Iterator[Callable[[], str]]:
    """Starts a worker, and gives a function that waits for it and gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        script = 'mount -t tmpfs none "$1" && shift && exec "$@"'
        program = [sys.executable, "-m", "tests.support.isolated_worker", "worker", str(listening.fileno())]
        words = [*namespace.entering(), "sh", "-c", script, "sh", str(hidden), *program]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(words, env=processes.environment(), pass_fds=[listening.fileno()], **pipes)
        address = f"grpc://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield lambda: _ready(process, address)
    finally:
        process.kill()
        process.wait()


def _ready(process: subprocess.Popen[bytes], address: str) -> str:
    assert process.stdout is not None
    # A worker that hangs is killed, which ends its output and the wait for it.
    limit = threading.Timer(limits.PROCESS, process.kill)
    limit.start()
    assert process.stdout.readline() == b"ready\n", "the worker did not start"
    limit.cancel()
    return address


def _relay(listening: socket.socket, port: int) -> None:
    while True:
        one, other = listening.accept()[0], socket.create_connection(("127.0.0.1", port))
        for ends in ((one, other), (other, one)):
            threading.Thread(target=_pump, args=ends, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(1 << 16):
            sink.sendall(content)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _client(hidden: Path, local: str, remote: str) -> None:
    """Compare a worker's input with this process's."""
    # When Python collects a function, TensorFlow tells the worker to forget it, whatever is being asked for then: a
    # request that comes in between fails ("Unable to find FunctionDef").
    gc.disable()
    with _worker(hidden) as address:
        import tensorflow as tf

        from tfrecord_io import reader, readiness

        data = reader.open(local)
        here = {name: _batches(_dataset(data, **case)) for name, case in CASES.items()}
        tf.config.experimental_connect_to_host(address())
        data = reader.open(remote)
        with tf.device("/job:worker"):
            for name, case in CASES.items():
                dataset = _dataset(data, **case)
                findings = readiness.check(dataset, tpu="node", batch="per_replica")
                assert findings, "this folder is not on gs://"
                assert all("outside of gs://" in finding.problem for finding in findings), findings
                there, devices = _batches(dataset)
                assert len(there) > 2, name
                assert there == here[name][0], name
                assert devices == {"/job:worker/replica:0/task:0/device:CPU:0"}
                assert all("localhost" in device for device in here[name][1])
            # Invisible to the worker.
            manifest = tf.data.Dataset.from_tensors(f"{local}/manifest.json").map(tf.io.read_file)
            for unseen in (_dataset(reader.open(local), "train"), manifest):
                with pytest.raises(tf.errors.NotFoundError, match=str(hidden)):
                    next(iter(unseen))
            assert Path(local, "manifest.json").exists()


def _dataset(data: Any, split: str, *, host: int | None = None, start_step: int = 0) -> Any:
    import tensorflow as tf

    from tfrecord_io import objectives

    context = tf.distribute.InputContext(
        num_input_pipelines=1 if host is None else 2, input_pipeline_id=host or 0, num_replicas_in_sync=2
    )
    objective = objectives.masked_lm() if split == "train" else objectives.classification()
    fn = data.input_fn(split, global_batch_size=_BATCH, seed=7, objective=objective, start_step=start_step)
    return fn(context)


def _batches(dataset: Any) -> tuple[list[str], set[str]]:
    """Digests of the first elements with dtypes and shapes, and the devices that they were made on."""
    import tensorflow as tf

    elements = [tf.nest.flatten(element, expand_composites=True) for element in itertools.islice(dataset, _STEPS)]
    arrays = [[tensor.numpy() for tensor in element] for element in elements]
    contents = [
        b"".join(f"{array.dtype} {array.shape} ".encode() + array.tobytes() for array in some) for some in arrays
    ]
    devices = {tensor.device for element in elements for tensor in element}
    return [hashlib.sha256(content).hexdigest() for content in contents], devices


if __name__ == "__main__":
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
    role, *arguments = sys.argv[1:]
    if role == "worker":
        namespace.bring_up_loopback()
        _serve(socket.socket(fileno=int(arguments[0])))
    try:
        _client(Path(arguments[0]), *arguments[1:])
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # TensorFlow would wait for a worker that is gone
