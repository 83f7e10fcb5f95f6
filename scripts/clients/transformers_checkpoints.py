"""Load random checkpoints with each setting in PyTorch and in train-tpu, and compare the logits.

PyTorch runs in a separate process, because it and TensorFlow cannot load their two copies of LLVM into one.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

WORK = pathlib.Path(sys.argv[1])
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_GEMMA = {**_GROUPED, "head_dim": 8, "num_key_value_heads": 1}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64}
_BERT = {**_SMALL, "max_position_embeddings": 64}
_ROBERTA = {**_BERT, "max_position_embeddings": 66, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
_SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_BART = {"d_model": 32, "max_position_embeddings": 64, "decoder_start_token_id": 0} | {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}
_GELUS = ("gelu", "gelu_pytorch_tanh", "relu")
# Model type, and the other settings in config.json.
CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("llama", _GROUPED),
    ("llama", {**_GROUPED, "rms_norm_eps": 1e-2}),
    ("llama", {**_GROUPED, "rope_theta": 500.0, "tie_word_embeddings": True}),
    ("llama", {**_GROUPED, "rope_scaling": _SCALED}),
    ("llama", {**_GROUPED, "rope_parameters": {**_SCALED, "rope_theta": 500.0}}),
    ("mistral", {**_GROUPED, "head_dim": 16, "sliding_window": 8, "rms_norm_eps": 1e-3}),
    ("mistral", {**_GROUPED, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}}),
    ("qwen2", {**_GROUPED, "rms_norm_eps": 1e-3}),
    ("qwen2", {**_GROUPED, "tie_word_embeddings": True, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("qwen3", {**_GROUPED, "head_dim": 16}),
    ("gemma", _GEMMA),
    ("gemma", {**_GEMMA, "hidden_act": "gelu"}),
    ("gemma2", {**_GEMMA, "query_pre_attn_scalar": 8, "sliding_window": 8, "final_logit_softcapping": 2.0}),
    ("gpt2", _GPT2),
    *(("gpt2", {**_GPT2, "n_inner": 64, "activation_function": name}) for name in _GELUS),
    *(("bert", {**_BERT, "hidden_act": name}) for name in ("gelu", "gelu_new", "relu")),
    ("bert", {**_BERT, "type_vocab_size": 3}),
    *(("albert", {**_BERT, "embedding_size": 16, "hidden_act": name}) for name in ("gelu", "gelu_new")),
    *((name, _ROBERTA) for name in ("roberta", "xlm-roberta")),
    *(("distilbert", {**_DISTILBERT, "activation": name}) for name in ("gelu", "relu")),
    *(("bart", {**_BART, "activation_function": name}) for name in ("gelu", "gelu_new")),
)
_MASKED = ("bert", "albert", "roberta", "xlm-roberta", "distilbert")
_CLASSES = {"mlm": "MaskedLM", "seq2seq": "Seq2SeqLM", "clm": "CausalLM"}


def _task(kind: str) -> str:
    return "mlm" if kind in _MASKED else "seq2seq" if kind == "bart" else "clm"


def write(work: pathlib.Path) -> None:
    """Save a random model in folder `work` for each case, and PyTorch's logits. No bias is 0, and no scale is 1."""
    import torch
    import transformers

    batch = np.load(work / "given.npz")
    mask = torch.tensor(batch["mask"], dtype=torch.long)
    for number, (kind, changes) in enumerate(CASES):
        torch.manual_seed(number)
        config = transformers.AutoConfig.for_model(kind, vocab_size=int(batch["vocab_size"]), **changes)
        maker = getattr(transformers, f"AutoModelFor{_CLASSES[_task(kind)]}")
        model = maker.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(torch.randn_like(parameter) * (0.3 if "attn" in name or "attention" in name else 0.1))
            # RoBERTa's positions depend on the padding.
            ids = torch.tensor(batch["ids"], dtype=torch.long).masked_fill(mask == 0, config.pad_token_id or 0)
            decoder = {"decoder_input_ids": ids, "decoder_attention_mask": mask} if kind == "bart" else {}
            logits = model(input_ids=ids, attention_mask=mask, **decoder).logits
        folder = work / str(number)
        model.save_pretrained(folder)
        np.save(folder / "logits.npy", logits.numpy())
        path = folder / "config.json"
        settings = json.loads(path.read_text())
        if "rope_scaling" in changes:  # releases before 5 write no rope_parameters
            settings.pop("rope_parameters", None)
        path.write_text(json.dumps({**settings, **changes}))


def largest_difference(kind: str, folder: pathlib.Path) -> float:
    """Return the largest difference of `train-tpu`'s logits from PyTorch's, for the saved model in `folder`."""
    from pipelines.train import models, setup
    from pipelines.train.config import TrainConfig
    from tfrecord_io import objectives

    task, batch = _task(kind), np.load(folder.parent / "given.npz")
    options: Any = {"data": str(WORK / "pad"), "task": task, "model": str(folder), "model_dir": str(folder / "run")}
    if task == "seq2seq":
        options |= {"data": str(WORK / "seq2seq"), "decoder_start": "pad"}
    job = setup.check(TrainConfig(**options, tpu="none"))
    model = models.build(job.config, job.data.manifest, job.task).model
    ids, mask = batch["ids"], batch["mask"]
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    inputs |= {objectives.DECODER_INPUTS: ids, objectives.DECODER_MASK: mask}
    if task == "mlm":
        inputs["masked_positions"] = np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1))
    ours = np.asarray(model({name: inputs[name] for name in inputs if name in model.input}, training=False))
    return float(np.abs(ours - np.load(folder / "logits.npy"))[mask > 0].max())


def main() -> None:
    """Compare the logits of all cases, and print the largest difference."""
    from tfrecord_io import reader

    work = WORK / "checkpoints"
    work.mkdir(exist_ok=True)
    data = reader.open(str(WORK / "pad"))
    features = next(iter(data.dataset("train", global_batch_size=8, training=False)))
    ids, mask = (features[name].numpy() for name in ("input_ids", "attention_mask"))
    np.savez(work / "given.npz", ids=ids, mask=mask, vocab_size=data.manifest.tokenizer.vocab_size)
    subprocess.run([sys.executable, __file__, str(WORK), "write"], check=True)
    worst: dict[str, float] = {}
    for number, (kind, changes) in enumerate(CASES):
        apart = largest_difference(kind, work / str(number))
        print(f"{apart:.1e} {kind} {changes}", file=sys.stderr, flush=True)
        assert sys.argv[2:] or apart <= 1e-4, f"{kind} with {changes}: logits {apart} apart"
        worst[kind] = max(worst.get(kind, 0.0), apart)
    print(f"{len(CASES)} checkpoints, logits at most {max(worst.values()):.1e} apart: {', '.join(worst)}")


if __name__ == "__main__":
    if sys.argv[2:] == ["write"]:
        write(WORK / "checkpoints")
    else:
        main()
