"""The program `prep-tfrecords`, also as `python -m prep_tfrecords`."""

import os
import signal
import sys


def main() -> None:
    """Run the command line, or end with an error that says what is not installed."""
    # What runs on several cores here are batches and shards, so libraries need no threads of their own: those of
    # OpenBLAS spin for a while in each process, 0.12 s of CPU, and those of fastokens each learn the same words anew.
    for name in ("OPENBLAS_NUM_THREADS", "FASTOKENS_BPE_THREADS"):
        os.environ.setdefault(name, "1")
    try:
        from pipelines.cli import commands
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("pipelines", "tfrecord_io"):
            raise
        sys.exit(
            f"error: prep-tfrecords needs the package {error.name}, which is not installed\n"
            "remedy: pip install prep-tfrecords, without --no-deps"
        )
    except KeyboardInterrupt:  # on a cold disk the imports take some seconds
        sys.exit(128 + signal.SIGINT)
    commands.main()


if __name__ == "__main__":
    main()
