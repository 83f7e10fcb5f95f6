"""Import TensorFlow without the messages that no setting turns off.

TensorFlow's C++ code writes these messages directly to file descriptor 2.
"""

import glob
import importlib
import os
import shutil
import sys
import tempfile

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def load(*, verbose: bool = False) -> None:
    """Import TensorFlow, and let it look for GPUs. Raises: ImportError.

    TensorFlow's messages are held back, and shown only if the import fails or a GPU of this machine cannot be used.
    With `verbose`, or if TF_CPP_MIN_LOG_LEVEL is 0 or 1, they are shown at once.
    """
    if verbose or os.environ.setdefault(_LOG_LEVEL, "2") in ("0", "1") or "tensorflow" in sys.modules:
        importlib.import_module("tensorflow")
        return
    sys.stderr.flush()
    is_shown = True
    with tempfile.TemporaryFile() as messages, open(os.dup(2), "wb", buffering=0) as terminal:
        os.dup2(messages.fileno(), 2)
        try:
            tensorflow = importlib.import_module("tensorflow")
            gpus = tensorflow.config.list_physical_devices("GPU")  # prints messages, too
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
            is_shown = bool(glob.glob("/dev/nvidia[0-9]*")) and not hidden and not gpus
        finally:
            sys.stderr.flush()
            os.dup2(terminal.fileno(), 2)
            if is_shown:
                messages.seek(0)
                shutil.copyfileobj(messages, terminal)
