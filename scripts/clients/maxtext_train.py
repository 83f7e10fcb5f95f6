"""Five steps of MaxText's pre-training on a CPU: a small model, its Grain pipeline, and token ids as they are."""

import pathlib
import re
import subprocess
import sys

import maxtext

work, kind, files, *more = sys.argv[1:]
config = pathlib.Path(maxtext.__file__).parent / "configs" / "base.yml"
options = {
    "run_name": "check",
    "base_output_directory": f"{work}/maxtext-out",
    "hardware": "cpu",
    "skip_jax_distributed_system": "true",
    "dataset_type": "grain",
    "grain_file_type": kind,
    "grain_train_files": files,
    "grain_worker_count": "0",
    "tokenize_train_data": "false",
    "train_data_columns": "['input_ids']",
    "tokenizer_type": "huggingface",
    "tokenizer_path": f"{work}/tokenizer",
    "vocab_size": "2000",
    "max_target_length": "64",
    "per_device_batch_size": "8",
    "steps": "5",
    "learning_rate": "0.01",
    "warmup_steps_fraction": "0",
    "enable_checkpointing": "false",
    "attention": "dot_product",
    "dtype": "float32",
    "base_emb_dim": "64",
    "base_num_query_heads": "2",
    "base_num_kv_heads": "2",
    "base_mlp_dim": "128",
    "base_num_decoder_layers": "2",
    "head_dim": "32",
}
options |= dict(word.split("=", 1) for word in more)
words = [f"{name}={value}" for name, value in options.items()]
command = [sys.executable, "-m", "maxtext.trainers.pre_train.train", str(config), *words]
ended = subprocess.run(command, capture_output=True, text=True)
losses = [float(loss) for loss in re.findall(r"completed step: \d+,.*?, loss: ([\d.]+)", ended.stdout + ended.stderr)]
if len(losses) < 5 or losses[-1] >= losses[0]:
    sys.exit(f"losses {losses}\n{ended.stderr[-1500:]}")
print(f"maxtext {maxtext.__version__ if hasattr(maxtext, '__version__') else ''}, {kind}: losses {losses}")
