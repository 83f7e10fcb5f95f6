"""Run the program `prep-tfrecords`, also as `python -m prep_tfrecords`."""

import os
import signal
import sys


def main() -> None:
    """Run the command line. If a package is missing, exit with an error that names it."""
    # Shards are made in parallel, so threads of libraries only cost time: OpenBLAS threads spin for 0.12 s of CPU time
    # per process, and each fastokens thread fills its own cache of words.
    for name in ("OPENBLAS_NUM_THREADS", "FASTOKENS_BPE_THREADS"):
        os.environ.setdefault(name, "1")
    try:
        from pipelines.cli import commands
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("pipelines", "tfrecord_io"):
            raise
        sys.exit(
            f"error: prep-tfrecords needs the package {error.name}, which is not installed\n"
            "remedy: run `pip install prep-tfrecords`, without --no-deps"
        )
    except KeyboardInterrupt:  # importing from a cold disk takes seconds
        sys.exit(128 + signal.SIGINT)
    commands.main()


if __name__ == "__main__":
    main()
