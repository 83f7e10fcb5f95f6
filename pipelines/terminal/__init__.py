"""Options, terminal output and error reports shared by `prep-tfrecords` and `train-tpu`."""
