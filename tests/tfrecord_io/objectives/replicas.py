"""Evaluate with Keras on 4 replicas, two with only fill rows in the last batch: `python -m … FOLDER`."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from tfrecord_io import objectives, reader

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(4)])
data = reader.open(sys.argv[1])
test = data.dataset("test", global_batch_size=32, objective=objectives.classification())
with strategy.scope():
    ids = keras.Input([8], dtype="int32", name="input_ids")
    table = keras.layers.Embedding(1000, 2, embeddings_initializer=keras.initializers.RandomNormal(seed=1))
    model = keras.Model({"input_ids": ids}, keras.layers.GlobalAveragePooling1D()(table(ids)))
    model.compile("sgd", **objectives.compile_args(test))
evaluated = model.evaluate(test, verbose=0, return_dict=True)
logits = model.predict(test, verbose=0)
labels = np.concatenate([batch[1] for batch in test])[:80]
odds = logits[:80] - np.log(np.exp(logits[:80]).sum(axis=1, keepdims=True))
expected = -odds[np.arange(80), labels].mean()
print(json.dumps({**evaluated, "rows": len(logits), "expected": float(expected)}))
