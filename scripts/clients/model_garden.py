"""Read a TFRecord export with Model Garden's loader for sentence prediction."""

import numpy as np
from official.nlp.data import sentence_prediction_dataloader as loader

from scripts.clients.expected import WORK, require_same, rows

config = loader.SentencePredictionDataConfig(
    input_path=f"{WORK}/pad-tfrecord/*-train-*.tfrecord",
    global_batch_size=10,
    is_training=False,
    seq_length=64,
    drop_remainder=False,
)
batches = list(loader.SentencePredictionDataLoader(config).load())
names = {"input_word_ids": "input_ids", "input_mask": "attention_mask", "label_ids": "label"}
for theirs, ours in names.items():
    values = np.concatenate([batch[theirs].numpy() for batch in batches])
    require_same(ours, sorted(values.tolist()), np.array(sorted(rows("pad")[ours].tolist())))
print(f"{sum(len(batch['label_ids']) for batch in batches)} rows, inputs {sorted(batches[0])}")
