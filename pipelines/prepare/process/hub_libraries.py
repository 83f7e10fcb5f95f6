"""Settings of the Hugging Face libraries, and a check whether the Hub answers.

Without the settings, `transformers` warns about missing PyTorch, and `datasets` reports each load to a server. Without
the check, a machine without a network would retry each request for a minute.
"""

import contextlib
import importlib
import os
import sys
import threading
import warnings
from typing import Any

_SETTINGS = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "TRANSFORMERS_VERBOSITY": "error",
}
_SECONDS = 10
_answered = threading.Event()


def configure() -> None:
    """Set the environment variables that the Hugging Face libraries read when they are imported."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if "IPython" in sys.modules:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm then prints plain bars
            importlib.import_module("tqdm.auto")


def hub_answers() -> bool:
    """Return whether the Hub answers within 10 seconds; False if HF_HUB_OFFLINE is set."""
    import huggingface_hub
    from huggingface_hub import constants

    get_session: Any = huggingface_hub.get_session

    def ask() -> None:
        with contextlib.suppress(Exception):  # releases use different HTTP libraries
            get_session().head(constants.ENDPOINT, timeout=_SECONDS)
            _answered.set()

    if not constants.HF_HUB_OFFLINE and not _answered.is_set():
        thread = threading.Thread(target=ask, name="hub", daemon=True)  # since a DNS look-up has no time limit
        thread.start()
        thread.join(_SECONDS)
    return _answered.is_set() and not constants.HF_HUB_OFFLINE
