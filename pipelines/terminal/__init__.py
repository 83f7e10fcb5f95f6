"""Options on the command line, terminal output and error reports shared by `prep-tfrecords` and `train-tpu`."""
