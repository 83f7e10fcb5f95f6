"""Beam's job service and worker pool, as processes on this machine, for Beam's portable runner.

    launcher ──► job service ──► worker pool ──► workers        (each arrow is a connection on loopback)

Everything a server starts is in its process group, and ends with it when the test is done. Run as a program, this
module is the job service or the worker pool: `python -m tests.support.servers service|pool OPTIONS`.
"""

import contextlib
import dataclasses
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.support import limits, processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """A running server: its address and its log."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool(Server):
    """A server that starts workers when a job service asks it to."""

    pid_file: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """A job service and its worker pool."""

    service: Server
    pool: Pool

    @property
    def beam_args(self) -> list[str]:
        """Arguments after a command's -- to run here. Its --workers is the number of worker processes."""
        service, pool = self.service.address, self.pool.address
        workers = ["--environment_type=EXTERNAL", f"--environment_config={pool}"]
        return ["--runner=PortableRunner", f"--job_endpoint={service}", *workers]

    def worker_pids(self) -> list[int]:
        return [int(line) for line in self.pool.pid_file.read_text().split()]


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Starts both in a new `folder`, which gets their logs."""
    folder.mkdir()
    with job_service(folder) as service, worker_pool(folder) as pool:
        yield Cluster(service=service, pool=pool)


@contextlib.contextmanager
def job_service(folder: Path) -> Iterator[Server]:
    """Starts a job service. `folder` gets its log."""
    port_file = folder / "port"
    words = [sys.executable, "-m", "tests.support.servers", "service", "--port=0", f"--port_file={port_file}"]
    with server(
        words, folder / "service.log", lambda _: port_file.read_text() if port_file.exists() else None
    ) as service:
        yield service


@contextlib.contextmanager
def worker_pool(folder: Path) -> Iterator[Pool]:
    """Starts a pool. `folder` gets its log."""
    pid_file = folder / "workers.pids"
    pid_file.touch()
    # The pool starts its workers as `python`, whatever that is: here it is this Python, and says who it is.
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho $$ >> "{pid_file}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"

    def logged_port(log: str) -> str | None:
        match = re.search(r"worker pool servicer at port: localhost:(\d+)", log)
        return match.group(1) if match else None

    words = [sys.executable, "-m", "tests.support.servers", "pool", "--service_port=0"]
    with server(words, folder / "pool.log", logged_port, PATH=path) as pool:
        yield Pool(process=pool.process, address=pool.address, log=pool.log, pid_file=pid_file)


def descendants(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def listening(pid: int) -> list[int]:
    """The TCP ports on which a process waits for connections, on whatever address."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:  # it ended while we looked
        return []
    return [connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN]


def session(pid: int) -> dict[int, str]:
    """Return the processes of the session led by a process, with their arguments: itself and all descendants, including
    orphans. Leaves out zombies.
    """
    by_name = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                by_name[process.pid] = " ".join(process.cmdline())
    return by_name


@contextlib.contextmanager
def server(words: list[str], log: Path, find_port: Callable[[str], str | None], **changes: str) -> Iterator[Server]:
    """Start a program and wait until `find_port` finds its port in its log. `changes` apply to its environment."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            words, env={**processes.environment(), **changes}, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        give_up = time.monotonic() + limits.ANSWER
        while (port := find_port(log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up, log.read_text()
            time.sleep(0.05)
        yield Server(process=process, address=f"localhost:{port}", log=log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _serve() -> None:
    """Beam's job service with two changes: it uses as many workers as --direct_num_workers says, where Beam's own uses
    one for every job; and it gives workers an address on loopback, where Beam's own gives the machine's full name.
    """
    from apache_beam.options.pipeline_options import DirectOptions
    from apache_beam.runners.portability import local_job_service_main
    from apache_beam.runners.portability.fn_api_runner import fn_runner

    class Runner(fn_runner.FnApiRunner):
        def run_via_runner_api(self, pipeline_proto: Any, options: Any) -> Any:
            self._num_workers = int(options.view_as(DirectOptions).direct_num_workers)
            return super().run_via_runner_api(pipeline_proto, options)

    fn_runner.FnApiRunner = Runner
    socket.getfqdn = lambda name="": "localhost"
    local_job_service_main.run(sys.argv[1:])


def _pool() -> None:
    from apache_beam.runners.worker import worker_pool_main

    worker_pool_main.main(sys.argv)


if __name__ == "__main__":
    # Beam leaves it to whatever else is imported whether its log is written.
    logging.basicConfig(level=logging.INFO)
    {"service": _serve, "pool": _pool}[sys.argv.pop(1)]()
