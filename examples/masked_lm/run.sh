#!/usr/bin/env bash
# From raw text to a masked language model that others can use, on this computer's CPU: bash examples/masked_lm/run.sh
# Everything is written under out/masked_lm, which is made again.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
out=out/masked_lm
rm -rf "$out"

# 1. Text: one JSON object a line.
python "$here/make_text.py" "$out/text/train.jsonl"

# 2. A Unigram tokenizer with [CLS], [SEP] and [MASK].
prep-tfrecords tokenizer "$out/text/train.jsonl" --output "$out/tokenizer" --kind unigram --style albert --vocab-size 65

# 3. TFRecord shards: documents joined as the tokenizer frames them, cut into rows of 16; one in twenty is held out.
prep-tfrecords build "$out/text/train.jsonl" --output "$out/data" --tokenizer "$out/tokenizer" \
  --layout concat --special-tokens tokenizer --max-length 16 --hold-out validation=5%

training=(--data "$out/data" --task mlm --model bert-tiny --global-batch-size 64)
# 4. Does this training run fit a TPU? Its own compiler says so, without a TPU, where it is installed.
if python -c 'import importlib.util as util, sys; sys.exit(not all(map(util.find_spec, ("jax", "libtpu"))))'; then
  train-tpu "${training[@]}" --preflight v3-8
else
  echo "preflight skipped: no jax or no libtpu here (pip install '.[preflight]')"
fi

# 5. Training from random weights; with a TPU, leave out --tpu none.
train-tpu "${training[@]}" --model-dir "$out/model" --tpu none --steps 1300 --warmup 300 --learning-rate 1e-3 \
  --dropout 0 --mask-probability 0.2 --log-every 100

# 6. Using it: one gap, then a fixed list of gaps whose words are known.
train-tpu predict --model "$out/model" --fill-mask "Tuesday comes after [MASK]."
python "$here/check.py" "$out/model"

# 7. A folder that transformers opens: config.json, model.safetensors, the tokenizer and a model card.
train-tpu export --model "$out/model" --format transformers --output "$out/exported"
