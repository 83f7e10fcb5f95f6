"""`python -m pipelines.cli`: the same as `prep-tfrecords`."""

from pipelines.cli.commands import main

main()
