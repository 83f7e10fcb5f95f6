"""Why a TPU could not be reached: from the words of a dozen libraries to one cause and one remedy.

Between `--tpu NAME` and a running TPU lie a look-up of the name (Google's API client), a connection (gRPC), and the
start of the TPU system (TensorFlow on the other side). Each fails in its own way, with its own kind of exception, so
they are told apart by what they say; what nobody foresaw is shown as it is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pipelines.train.errors import DeviceError

__all__ = ["explain"]


class _Refusal(NamedTuple):
    pattern: str
    cause: str
    remedy: str


# The first that fits. The more specific ones stand before those whose words they contain.
_REFUSALS = [
    _Refusal(
        r"googleapiclient.*must be installed|dependency on the Google API client"
        r"|No module named '?(googleapiclient|oauth2client|cloud_tpu_client)",
        "looking up a TPU by its name needs Google's API client, which is not installed",
        "run `pip install cloud-tpu-client`, or give the address: --tpu grpc://IP:8470",
    ),
    _Refusal(
        r"not yet ready|state: \"?(CREATING|STARTING|RESTARTING|REPAIRING|STOPPED|PREEMPTED|DELETING)",
        "the TPU exists but is not ready",
        "see `gcloud compute tpus list`; wait until it is READY, or start or make it again",
    ),
    _Refusal(
        r"\b403\b|PERMISSION_DENIED|PermissionDenied|does not have .*permission|Forbidden|insufficient.*scope"
        r"|could not (automatically )?determine (default )?credentials|default credentials were not found",
        "no permission to use the TPU",
        "run `gcloud auth application-default login`, and ask for the role TPU Viewer or TPU Admin in the project",
    ),
    _Refusal(
        r"\b404\b|Could not lookup TPU metadata|was not found|Resource .*not found|NOT_FOUND: .*node",
        "there is no TPU of that name in this project and zone",
        "check --tpu, --zone and --project against `gcloud compute tpus list --zone ZONE`",
    ),
    _Refusal(
        r"Op type not registered|unknown (compression|attr)|NodeDef mentions attr|Unexpected.*version"
        r"|version mismatch|incompatible.*version|GraphDef producer version|Unable to parse.*proto"
        r"|UNIMPLEMENTED|Method not found",
        "the TPU runs another version of TensorFlow than this program",
        "make the TPU with the software version of this TensorFlow, or install the TensorFlow that the TPU runs",
    ),
    _Refusal(
        r"Cannot find any TPU cores|No TPU|TPU_SYSTEM|no TPU|ConfigureDistributedTPU|Could not satisfy.*TPU"
        r"|Failed to find any TPU|not a TPU|libtpu.so|TPU platform|No OpKernel was registered.*TPU",
        "there is no TPU",
        "give the address of a TPU Node (port 8470), or --tpu none to train on what this machine has",
    ),
    _Refusal(
        r"UNAVAILABLE|Unavailable|DEADLINE_EXCEEDED|Deadline|failed to connect|Connection (refused|reset|timed out)"
        r"|Socket closed",
        "the TPU cannot be reached, or went away",
        "check that it is READY and in this machine's network (port 8470), and that no other program holds it",
    ),
]


def explain(error: BaseException, *, target: str) -> DeviceError:
    """The error for a TPU that could not be had, with the library's own first line in it."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    short = said if len(said) <= 300 else said[:297] + "..."
    for refusal in _REFUSALS:
        if re.search(refusal.pattern, said):
            return DeviceError(f"{target}: {refusal.cause} ({short})", remedy=refusal.remedy)
    return DeviceError(
        f"{target}: the TPU could not be started ({short})",
        remedy="see `gcloud compute tpus list`, and try --verbose for the whole of it",
    )
