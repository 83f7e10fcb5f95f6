"""A TPU Node without the TPU: a TensorFlow server as if on another machine, and a client that has its input made there.

    client ──► tf.distribute.Server        a process of its own, with
                                             its own mounts: an empty file system over the client's folder
                                             its own network: nothing but loopback, no way back to the client

The client's connections come in through a socket that the worker was started with, and that is still in the client's
network. The worker ends with the client, whichever way that ends. A program:

    python -m tests.support.isolated_worker client HIDDEN LOCAL REMOTE

reads LOCAL, a dataset below folder HIDDEN, in the client, and REMOTE on the worker. Writes JSON: what came of it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cloud import namespace
from tests.support import processes

__all__ = ["CASES", "STEPS"]

STEPS = 8
CASES: dict[str, dict[str, Any]] = {
    "training": {"split": "train"},
    "training from a step on": {"split": "train", "start_step": 5},
    "training of the second host": {"split": "train", "host": 1},
    "evaluation": {"split": "validation"},
    "evaluation from a step on": {"split": "validation", "start_step": 1},
}
"""Arguments of input functions; `host` is one of two."""

_BATCH = 32
_START_SECONDS = 90


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
        process = subprocess.Popen(
            [*namespace.entering(), "sh", "-c", script, "sh", str(hidden), *program],
            env=processes.environment(),
            pass_fds=[listening.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        address = f"grpc://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield lambda: _ready(process, address)
    finally:
        process.kill()
        process.wait()


def _ready(process: subprocess.Popen[bytes], address: str) -> str:
    assert process.stdout is not None
    # A worker that hangs is killed, which ends its output and the wait for it.
    limit = threading.Timer(_START_SECONDS, process.kill)
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


def _client(hidden: Path, local: str, remote: str) -> dict[str, Any]:
    """What the client reports."""
    # When Python collects a function, TensorFlow tells the worker to forget it, whatever is being asked for then: a
    # request that comes in between fails ("Unable to find FunctionDef").
    gc.disable()
    with _worker(hidden) as address:
        import tensorflow as tf

        from tfrecord_io import reader

        report = _before(reader.open(local))
        tf.config.experimental_connect_to_host(address())
        data = reader.open(remote)
        with tf.device("/job:worker"):
            datasets = {name: _dataset(data, **case) for name, case in CASES.items()}
            report["remote"] = {name: _batches(dataset) for name, dataset in datasets.items()}
            report["findings"] = [finding.problem for each in datasets.values() for finding in _findings(each)]
        return {**report, **_failures(local)}


def _before(data: Any) -> dict[str, Any]:
    """What the client does before it has a worker."""
    local = {name: _batches(_dataset(data, **case)) for name, case in CASES.items()}
    return {"refusal": _refusal(data), "local": local}


def _failures(local: str) -> dict[str, Any]:
    """What a worker cannot do."""
    import tensorflow as tf

    from tfrecord_io import reader

    with tf.device("/job:worker"):
        manifest = tf.data.Dataset.from_tensors(f"{local}/manifest.json").map(tf.io.read_file)
        return {
            "hidden": _attempt(lambda: next(iter(manifest))),
            "hidden data": _attempt(lambda: next(iter(_dataset(reader.open(local), "train")))),
        }


def _dataset(data: Any, split: str, *, host: int | None = None, start_step: int = 0) -> Any:
    import tensorflow as tf

    from tfrecord_io import objectives

    context = tf.distribute.InputContext(
        num_input_pipelines=1 if host is None else 2, input_pipeline_id=host or 0, num_replicas_in_sync=2
    )
    objective = objectives.masked_lm() if split == "train" else objectives.classification()
    fn = data.input_fn(split, global_batch_size=_BATCH, seed=7, objective=objective, start_step=start_step)
    return fn(context)


def _batches(dataset: Any) -> dict[str, list[str]]:
    """Digests of the first elements with dtypes and shapes, and the devices that they were made on."""
    import tensorflow as tf

    elements = list(itertools.islice(dataset, STEPS))
    leaves = [tf.nest.flatten(element, expand_composites=True) for element in elements]
    return {
        "digests": [hashlib.sha256(b"".join(map(_content, element))).hexdigest() for element in leaves],
        "devices": sorted({leaf.device for element in leaves for leaf in element}),
    }


def _content(tensor: Any) -> bytes:
    array = tensor.numpy()
    return f"{array.dtype} {array.shape} ".encode() + bytes(array.tobytes())


def _findings(dataset: Any) -> list[Any]:
    from tfrecord_io import readiness

    return readiness.check(dataset, tpu="node", batch="per_replica")


def _refusal(data: Any) -> str:
    """What a trainer says of data that the worker cannot read, before it has connected to one."""
    from tfrecord_io import readiness
    from tfrecord_io.errors import ReaderError

    try:
        readiness.require(readiness.check_data(data, "train", global_batch_size=_BATCH, tpu="node", num_replicas=2))
    except ReaderError as error:
        return str(error)
    return ""


def _attempt(action: Callable[[], Any]) -> str:
    import tensorflow as tf

    try:
        action()
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error.message}"
    return "works"


def _main() -> None:
    parser = argparse.ArgumentParser()
    roles = parser.add_subparsers(dest="role", required=True)
    worker = roles.add_parser("worker")
    worker.add_argument("descriptor", type=int)
    client = roles.add_parser("client")
    client.add_argument("hidden", type=Path)
    client.add_argument("local")
    client.add_argument("remote")
    given = parser.parse_args()
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
    if given.role == "worker":
        namespace.bring_up_loopback()
        _serve(socket.socket(fileno=given.descriptor))
    report = _client(given.hidden, given.local, given.remote)
    print(json.dumps(report), flush=True)
    os._exit(0)  # TensorFlow would wait for a worker that is gone


if __name__ == "__main__":
    _main()
