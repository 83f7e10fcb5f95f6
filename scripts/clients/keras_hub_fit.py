"""Fit KerasHub's classifier on JAX or TensorFlow with the reader's batches under names='keras-hub'."""

import os
import sys

os.environ["KERAS_BACKEND"] = sys.argv[2]  # before Keras is imported

import keras
import keras_hub

from scripts.clients.expected import WORK
from tfrecord_io import objectives, reader

keras.utils.set_random_seed(1)
data = reader.open(f"{WORK}/pad")
train = data.dataset("train", global_batch_size=32, objective=objectives.classification(), names="keras-hub")
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=data.manifest.tokenizer.vocab_size,
    num_layers=1,
    num_heads=2,
    hidden_dim=32,
    intermediate_dim=64,
    max_sequence_length=64,
    dropout=0.0,
)
model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None, dropout=0.0)
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
losses = model.fit(train, steps_per_epoch=20, epochs=5, verbose=0).history["loss"]
assert keras.config.backend() == sys.argv[2]
assert losses[-1] < losses[0]
print(f"losses {[round(loss, 3) for loss in losses]}")
