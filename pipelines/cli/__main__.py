"""Entry point of `python -m pipelines.cli`, the same program as `prep-tfrecords`."""

from pipelines.cli.commands import main

main()
