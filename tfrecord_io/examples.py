"""Arrays to `tf.train.Example` bytes and back, without TensorFlow. The work is done in `codec.examples`."""

from __future__ import annotations

from tfrecord_io.codec.examples import Memory, Payloads, decode, encode

__all__ = ["Memory", "Payloads", "decode", "encode"]
