"""Train a small model for five steps with MaxText and its Grain pipeline, on each kind of file that it reads."""

import pathlib
import re
import subprocess
import sys

import maxtext

WORK = sys.argv[1]
CONFIG = pathlib.Path(maxtext.__file__).parent / "configs" / "base.yml"
OPTIONS = """
    run_name=check hardware=cpu skip_jax_distributed_system=true enable_checkpointing=false
    dataset_type=grain grain_worker_count=0 tokenize_train_data=false tokenizer_type=huggingface vocab_size=2000
    max_target_length=64 per_device_batch_size=8 steps=5 learning_rate=0.01 warmup_steps_fraction=0
    attention=dot_product dtype=float32 base_num_decoder_layers=2 base_emb_dim=64 base_mlp_dim=128
    base_num_query_heads=2 base_num_kv_heads=2 head_dim=32
"""
PATHS = (f"base_output_directory={WORK}/maxtext-out", f"tokenizer_path={WORK}/tokenizer")
IDS = "train_data_columns=['input_ids']"
KINDS = {
    "tfrecord": ("concat/*-train-*.tfrecord", IDS),
    "arrayrecord": ("concat-arrayrecord/*-train-*.array_record", IDS),
    "parquet": ("pad-parquet/*-train-*.parquet", IDS, "packing=true"),
    "mmap": ("concat-megatron", "train_data_columns=['text']", "mmap_eod_id=3"),
}
for kind, (files, *more) in KINDS.items():
    data = (f"grain_file_type={kind}", f"grain_train_files={WORK}/{files}", *more)
    command = [sys.executable, "-m", "maxtext.trainers.pre_train.train", str(CONFIG), *OPTIONS.split(), *PATHS, *data]
    ended = subprocess.run(command, capture_output=True, text=True)
    output = ended.stdout + ended.stderr
    losses = [float(loss) for loss in re.findall(r"completed step: \d+,.*?, loss: ([\d.]+)", output)]
    if len(losses) < 5 or losses[-1] >= losses[0]:
        sys.exit(f"{kind}: losses {losses}\n{ended.stderr[-1500:]}")
    print(f"{kind}: losses {losses}")
