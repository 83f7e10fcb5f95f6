"""The on-disk format and its readers: everything a trainer needs, and nothing of the preparing side.

`schema`, `manifest`, `examples`, `records` and `errors` need no TensorFlow; `reader` and `objectives` do.
Start with `from tfrecord_io import reader; data = reader.open("gs://bucket/dataset")`.
"""

__version__ = "0.1.0"
