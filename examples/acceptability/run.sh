#!/usr/bin/env bash
# From labelled sentences to predictions for unlabelled ones, on this computer's CPU: bash examples/acceptability/run.sh
# Everything is written under out/acceptability, which is made again.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
out=out/acceptability
rm -rf "$out"

# 1. A WordPiece tokenizer of the sentences to learn from.
prep-tfrecords tokenizer "$here" --split train --text-column sentence --output "$out/tokenizer" \
  --kind wordpiece --style bert --vocab-size 190

# 2. TFRecord shards of all splits; the test split has no labels (-1).
prep-tfrecords build "$here" --output "$out/data" --tokenizer "$out/tokenizer" \
  --text-column sentence --label-column label --max-length 24

# 3. Training from random weights; the checkpoint with the best Matthews correlation becomes the model.
train-tpu --data "$out/data" --task classify --model bert-tiny --model-dir "$out/model" --tpu none \
  --epochs 20 --warmup-ratio 0.1 --learning-rate 5e-4 --dropout 0 --log-every 100 --eval-every 100 \
  --keep-best --best-metric matthews

# 4. A row for each sentence of the test split, in the order of test.jsonl.
train-tpu predict --model "$out/model" --data "$out/data" --split test --output "$out/test.parquet" --tpu none
