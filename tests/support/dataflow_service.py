"""A fake Dataflow on loopback: accepts a job like the service, and reports on it until it ends.

    launcher ── POST /v1b3/projects/P/locations/R/jobs ──► `Service.requests`
             ── GET  …/jobs/ID                          ──► one state after another; the last one stays
             ── GET  …/jobs/ID/messages, …/metrics      ──► errors; counters

`work`, a function called with the request in a separate thread, decides the job's result. `worker_in_new_environment`
acts like a worker: it installs exactly the staged packages and runs the staged pipeline.
"""

import contextlib
import dataclasses
import json
import sys
import threading
import venv
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.cloud.emulator import Gcs
from tests.support import processes

# In the order of the jobs: ingesting a source is a separate job.
JOB_IDS = ("2030-01-01_00_00_00-4711", "2030-01-01_00_00_01-4712")

_WORKER = Path(__file__).with_name("dataflow_worker.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """How a job ended: its last state, and the service's last message."""

    state: str = "JOB_STATE_DONE"
    message: str = ""


Work = Callable[[Mapping[str, Any]], End]


class Service:
    """Requests of launchers, and the answers to them."""

    def __init__(self, work: Work) -> None:
        self.endpoint = ""
        self.requests: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.counters: dict[str, int] = {}
        self.refusal = ""
        self._work = work
        self._ends: dict[str, End] = {}
        self._watched: set[str] = set()

    @property
    def beam_args(self) -> list[str]:
        """Sends a job here. Beam speaks HTTP with a service of that name, and gRPC with others."""
        place = ["--runner=DataflowRunner", "--project=some-project", "--region=us-central1"]
        return [*place, f"--dataflow_endpoint={self.endpoint}", "--no_auth"]

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """The status and the document for a request."""
        self.asked.append(f"{method} {path.partition('?')[0]}")
        if method == "POST":
            if self.refusal:
                return 409, {"error": {"code": 409, "message": self.refusal, "status": "ALREADY_EXISTS"}}
            self._begin(json.loads(body))
        number = next((at for at, job_id in enumerate(JOB_IDS) if job_id in path), len(self.requests) - 1)
        end = self._ends.get(JOB_IDS[number])
        if "/messages" in path:
            about = {"id": "1", "time": "2030-01-01T00:00:01.500Z", "messageImportance": "JOB_MESSAGE_ERROR"}
            return 200, {"jobMessages": [{**about, "messageText": end.message}] if end and end.message else []}
        if "/metrics" in path:
            return 200, {"metrics": [one for name, number in self.counters.items() for one in _metrics(name, number)]}
        job = {name: self.requests[number][name] for name in ("name", "clientRequestId")}
        job |= {"id": JOB_IDS[number], "projectId": "some-project", "location": "us-central1"}
        if method == "GET":
            # The first question is answered while the job runs.
            job["currentState"] = end.state if end and JOB_IDS[number] in self._watched else "JOB_STATE_RUNNING"
            self._watched.add(JOB_IDS[number])
        return 200, job

    def _begin(self, request: dict[str, Any]) -> None:
        job = JOB_IDS[len(self.requests)]
        self.requests.append(request)

        def work() -> None:
            try:
                self._ends[job] = self._work(request)
            except Exception as error:
                self._ends[job] = End(state="JOB_STATE_FAILED", message=f"the test's own worker: {error!r}")

        threading.Thread(target=work, daemon=True).start()


def _metrics(name: str, number: int) -> list[dict[str, Any]]:
    """A counter as the service has it: with work under way, and without."""
    context = {"step": "s1", "namespace": "prep-tfrecords"}
    return [
        {"name": {"origin": "user", "name": name, "context": {**context, "tentative": "true"}}, "scalar": number},
        {"name": {"origin": "user", "name": name, "context": context}, "scalar": 0},
    ]


@contextlib.contextmanager
def running(work: Work) -> Iterator[Service]:
    """Serves on a free port of loopback."""
    service = Service(work)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = service.answer(self.command, self.path, body)
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.endpoint = f"http://localhost:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield service
        finally:
            server.shutdown()


def worker_in_new_environment(gcs: Gcs, folder: Path) -> Work:
    """Run the work in a virtual environment in `folder`. `folder`/report.json has the result.

    Jobs of one launch share the environment if they install the same packages.
    """
    installed: list[bytes] = []

    def work(request: Mapping[str, Any]) -> End:
        options = request["environment"]["sdkPipelineOptions"]["options"]
        bucket, _, place = options["pipelineUrl"].removeprefix("gs://").partition("/")
        staged = place.rpartition("/")[0] + "/"
        for name, content in gcs.objects(bucket, staged).items():
            (folder / name).write_bytes(content)
        packages = [folder / name for name in (folder / "extra_packages.txt").read_text().split()]
        if installed != (packed := [path.read_bytes() for path in packages]):
            _make_environment(folder / "environment", packages)
            installed[:] = packed
        # Neither this repository nor the launcher's tokens are there, and no Hub answers.
        emulator = ("STORAGE_EMULATOR_HOST", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT")
        environment = {name: gcs.environment()[name] for name in emulator}
        environment |= {"HOME": str(folder), "HF_ENDPOINT": "http://127.0.0.1:1"}
        python = folder / "environment" / "bin" / "python"
        ended = processes.run([python, "-I", _WORKER, "pipeline.pb", "report.json"], cwd=folder, env=environment)
        return End(state="JOB_STATE_FAILED", message=ended.stderr) if ended.returncode else End()

    return work


def _make_environment(home: Path, packages: list[Path]) -> None:
    """Make an environment with these packages on top of the current ones."""
    venv.EnvBuilder(symlinks=True, clear=True).create(home)
    python = home / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = home / "lib" / version / "site-packages" / "libraries.pth"
    libraries.write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    # Like workers, but without a package index: the packages of requirements.txt are installed here already.
    processes.run([*pip, "--force-reinstall", "--no-deps", "--no-index", *packages], check=True)
