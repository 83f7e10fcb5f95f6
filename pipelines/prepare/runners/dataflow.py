"""Prepare and monitor Beam jobs on Google Cloud Dataflow.

An interrupt ends only the monitoring: the job continues, and commits the dataset.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
import threading
from typing import Any

from apache_beam.metrics import MetricsFilter
from apache_beam.options import pipeline_options
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from pipelines.prepare import storage
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.runners import shipping
from tfrecord_io.errors import ConfigError, PrepError

RUNNER = "DataflowRunner"
# Namespace of the workers' metrics, and each counter's name in `Progress.add`.
NAMESPACE = "prep-tfrecords"
_COUNTERS = {"rows": "rows", "tokens": "tokens", "bytes": "num_bytes", "shards": "shards"}

_POLL_SECONDS = 15.0
_LONGEST_NAME = 63
# Without this, Beam would upload the launcher's `pip freeze` output, which may contain passwords.
_EXPERIMENT = "disable_logging_submission_environment"

_log = logging.getLogger(__name__)


def check(options: PipelineOptions, *, root: str) -> None:
    """Check the options of a Dataflow job, and that workers can reach `root`. Raises: ConfigError, OutputError."""
    if importlib.util.find_spec("google.cloud.dataflow") is None:
        cause = "--runner=DataflowRunner needs Google Cloud's libraries for Beam, which are not installed"
        raise ConfigError(cause, remedy="install them with: pip install 'apache-beam[gcp]'")
    cloud = options.view_as(GoogleCloudOptions)
    missing = [f"--{name}" for name in ("project", "temp_location") if not getattr(cloud, name)]
    if missing and not (missing == ["--temp_location"] and cloud.staging_location):
        remedy = "give -- --runner=DataflowRunner --project=PROJECT --region=REGION --temp_location=gs://BUCKET/tmp"
        raise ConfigError(f"--runner=DataflowRunner without {' and '.join(missing)}", remedy=remedy)
    if storage.local_path(root) is not None:
        cause = f"--output {root} is a folder on this machine, which Dataflow's workers cannot reach"
        raise ConfigError(cause, remedy="give --output gs://BUCKET/FOLDER")
    storage.list_names(cloud.temp_location or cloud.staging_location)


def prepare(options: PipelineOptions, *, name: str, place: str, folder: str) -> None:
    """Set missing options: workers' packages, written to `folder`, and a job name made of `name` and `place`."""
    shipping.ship(
        options.view_as(pipeline_options.SetupOptions), options.view_as(pipeline_options.WorkerOptions), folder
    )
    options.view_as(pipeline_options.DebugOptions).add_experiment(_EXPERIMENT)
    cloud = options.view_as(GoogleCloudOptions)
    if not cloud.job_name:  # the service does not run two jobs of the same name at once
        digest = hashlib.sha256(place.encode()).hexdigest()[:12]
        room = _LONGEST_NAME - len(f"{NAMESPACE}--{digest}")
        shown = re.sub("[^a-z0-9]+", "-", name.lower())[:room].strip("-")
        cloud.job_name = "-".join(filter(None, (NAMESPACE, shown, digest)))


class Monitor:
    """Monitor of a Dataflow job. `completes`: the job makes the whole dataset; otherwise it only ingests the source."""

    def __init__(self, options: PipelineOptions, *, completes: bool, progress: Progress) -> None:
        self._completes, self._progress = completes, progress
        cloud = options.view_as(GoogleCloudOptions)
        self._project, self._region = cloud.project, cloud.region
        self._job_id: str | None = None
        self._ended = threading.Event()

    def follow(self, result: Any) -> None:
        """Show a link to the submitted job `result`, a Beam PipelineResult, and report its progress from a thread."""
        self._job_id = result.job_id()
        page = f"https://console.cloud.google.com/dataflow/jobs/{self._region}/{self._job_id}?project={self._project}"
        self._progress.post_note(f"Dataflow job {self._job_id}: {page}")
        threading.Thread(target=self._follow, args=(result,), name="dataflow", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def interrupted(self) -> PrepError | None:
        """Return the error to raise after an interrupt, or None if the job is not submitted yet."""
        if self._job_id is None:
            return None
        does, kept = "completes the dataset", "finished shards"
        if not self._completes:
            does, kept = "copies the source", "copied rows"
        return PrepError(
            f"interrupted, but the Dataflow job {self._job_id} still runs and {does} without this process",
            remedy=f"to end the job, run `gcloud dataflow jobs cancel {self._job_id} --region={self._region} "
            f"--project={self._project}`; {kept} are kept, and the same build command continues from there",
        )

    def _follow(self, result: Any) -> None:
        before = dict.fromkeys(_COUNTERS, 0)
        while not self._ended.wait(_POLL_SECONDS):
            now = dict.fromkeys(_COUNTERS, 0)
            try:
                for counter in result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]:
                    if (name := counter.key.metric.name) in now:
                        now[name] += int(counter.committed or 0 if counter.attempted is None else counter.attempted)
            except Exception as error:  # the job itself continues
                _log.debug("no metrics of %s: %s", self._job_id, error)
                continue
            self._progress.add(**{_COUNTERS[name]: now[name] - before[name] for name in now})
            before = now
