"""The program `prep-tfrecords`, also as `python -m prep_tfrecords`."""

import os
import signal
import sys


def main() -> None:
    """Run the command line, or end with an error that says what is not installed."""
    # Read when NumPy is imported. Nothing here multiplies matrices, and each process would start a thread for each core
    # that spins for a while: 0.12 s of CPU.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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
