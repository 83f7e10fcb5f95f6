"""Command-line options, terminal output and error reports of `prep-tfrecords` and `train-tpu`."""
