"""The worker of tests.support.dataflow_service: `python dataflow_worker.py PIPELINE.pb REPORT.json`.

Runs a staged pipeline in this process, with only Beam and the installed packages.
"""

import importlib.metadata
import json
import sys
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import EmbeddedPythonEnvironment


def main(pipeline_file: str, report_file: str) -> None:
    """Run the pipeline. Report its counts and the location of its code."""
    pipeline = beam_runner_api_pb2.Pipeline.FromString(Path(pipeline_file).read_bytes())
    for environment in pipeline.components.environments.values():
        environment.CopyFrom(EmbeddedPythonEnvironment.default().to_runner_api(None))
    result = FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([]))
    result.wait_until_finish()
    counters = [(counter.key.metric, counter.committed) for counter in result.metrics().query()["counters"]]
    code = sys.modules["pipelines.prepare.shards.shard_writer"].__file__
    report = {
        "counters": {f"{metric.namespace}:{metric.name}": committed for metric, committed in counters},
        "code": code,
        "requires": importlib.metadata.requires("prep-tfrecords"),
        "modules": sorted(name for name in sys.modules if "." not in name),
    }
    Path(report_file).write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
