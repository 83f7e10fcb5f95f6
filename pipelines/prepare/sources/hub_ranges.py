"""Parts of files on the Hugging Face hub, one request each: its file system would look each file up before.

The hub's own client adds a token if there is one, waits as long as the hub says where it is asked too often, and knows
of proxies and mirrors.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import Any

from pipelines.prepare import storage_errors
from tfrecord_io.errors import SourceError

__all__ = ["SCHEME", "get"]

SCHEME = "hf://datasets/"
_SECONDS = 60


def get(address: str, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of `hf://datasets/NAME@COMMIT/FILE`.

    Raises: FileNotFoundError; SourceError if it may not be read; what the client raises if the hub cannot be asked.
    """
    import huggingface_hub
    from huggingface_hub import errors

    # Its exports are made at run time.
    utils: Any = huggingface_hub.utils
    headers = {**utils.build_hf_headers(), "range": f"bytes={start}-{stop - 1}"}
    try:
        response = utils.http_backoff("GET", _url(address), headers=headers, timeout=_SECONDS)
        utils.hf_raise_for_status(response)
    except errors.OfflineModeIsEnabled as error:
        raise SourceError(f"{address}: cannot be read while HF_HUB_OFFLINE is set", remedy="unset it") from error
    except errors.HfHubHTTPError as error:
        status = storage_errors.status_of(error)
        if status in (401, 403):
            raise SourceError(
                f"{address}: the hub refuses access (status {status})",
                remedy="ask for access on the page of the dataset, then set HF_TOKEN",
            ) from error
        if status == 404:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address) from error
        raise
    content: bytes = response.content
    return content


@functools.lru_cache(maxsize=1_024)
def _url(address: str) -> str:
    from huggingface_hub import hf_hub_url

    name, _, rest = address.removeprefix(SCHEME).partition("@")
    revision, _, file = rest.partition("/")
    return str(hf_hub_url(name, file, repo_type="dataset", revision=revision))
