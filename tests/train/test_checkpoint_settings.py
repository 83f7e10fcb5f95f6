"""Checkpoints of transformers: each type trains, predicts and is exported; each setting is used, or refused by name."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipelines.train import models, setup
from pipelines.train.config import TrainConfig
from pipelines.train.models import settings
from tests import building
from tests.support import checkpoints
from tests.train import training
from tests.train.finished import command, done, predicted
from tfrecord_io import reader
from tfrecord_io.errors import ConfigError

ENCODERS = ("bert", "albert", "roberta", "xlm-roberta", "distilbert")
NESTED = ("roberta", "xlm-roberta", "distilbert")  # the embedding is a part of another layer
EXPORTED = ("bert", "gpt2", "llama", "mistral", "qwen2", "gemma")
# Both layers of gemma2, which differ; one of any other type. All tests of values, below and of exports, have two.
LAYERS = {"distilbert": {"n_layers": 1}, "gemma2": {}, "gpt2": {"n_layer": 1}}
LAYERS["bart"] = {"encoder_layers": 1, "decoder_layers": 1}


def written(folder: Path, kind: str, *, data: Path | None = None, **changes: Any) -> Path:
    vocab_size = reader.open(data or training.data()).manifest.tokenizer.vocab_size
    return checkpoints.write(folder, kind, vocab_size=vocab_size, **changes)


def begun(folder: Path, task: str) -> models.BuiltModel:
    options: Any = {"data": str(training.data()), "task": task, "model": str(folder), "model_dir": str(folder / "run")}
    job = setup.check(TrainConfig(**options, tpu="none"))
    return models.build(job.config, job.data.manifest, job.task)


@pytest.mark.slow
@pytest.mark.parametrize("kind", settings.TYPES)
def test_each_type_takes_a_step_is_saved_predicts_and_is_exported(tmp_path: Path, kind: str) -> None:
    task = "mlm" if kind in ENCODERS else "seq2seq" if kind == "bart" else "clm"
    few = building.reviews(max_length=16, split="train", limit=32)  # and nothing to evaluate
    data = training.translations() if task == "seq2seq" else few
    layers = LAYERS.get(kind, {"num_hidden_layers": 1})
    folder, model = written(tmp_path / kind, kind, data=data, **layers), tmp_path / "model"
    training.done(model, task=task, model=folder, data=data, steps=1)
    if task == "mlm":
        assert done("predict", model=model, fill_mask="a [MASK] film", json=True).out
    else:
        more = {"generate": 2} if kind in ("gpt2", "llama", "gemma2") else {}  # with positions, rotary, two layers
        assert predicted(tmp_path, model=model, data=data, split="train", **more)
    outcome = command("export", model=model, format="keras", output=tmp_path / "keras")
    if kind in NESTED:
        assert "which Keras cannot load from a file" in outcome.error[0]
    else:
        assert keras.models.load_model(tmp_path / "keras" / "model.keras").count_params()
    outcome = command("export", model=model, format="transformers", output=tmp_path / "to")
    if kind in EXPORTED:
        assert outcome.status == 0, outcome.err
        names = ("config.json", "generation_config.json") if task == "clm" else ()
        ends = [json.loads((tmp_path / "to" / name).read_text())["eos_token_id"] for name in names]
        sep_id = reader.open(data).manifest.tokenizer.sep_id
        assert sep_id is not None
        assert ends == [sep_id] * len(names), "where `predict` ends a text"
        again = begun(tmp_path / "to", task)
        assert again.backbone is not None
    else:
        assert "--format transformers" in outcome.error[0]


@pytest.mark.slow
def test_a_bias_of_the_logits_is_refused_unless_it_is_zero(tmp_path: Path) -> None:
    data = training.translations()
    vocab_size = reader.open(data).manifest.tokenizer.vocab_size
    folder = written(tmp_path / "bart", "bart", data=data, more={"final_logits_bias": vocab_size})
    options = {"task": "seq2seq", "model": folder, "data": data, "steps": 1}
    assert "cannot use final_logits_bias" in training.command(tmp_path / "model", **options).error[0]
    tensors = load_file(folder / "model.safetensors")
    tensors["final_logits_bias"] = np.zeros_like(tensors["final_logits_bias"])
    save_file(tensors, folder / "model.safetensors")
    assert "final_logits_bias" not in training.done(tmp_path / "model", **options).err


@pytest.mark.slow
def test_a_decoder_that_starts_otherwise_than_its_folder_is_named_needs_an_option(tmp_path: Path) -> None:
    data = training.translations()
    folder = written(tmp_path / "summarizer", "bart", data=data)
    cause, remedy = training.command(tmp_path / "model", task="seq2seq", model=folder, data=data, steps=1).error
    assert "would start with pad, but a BartBackbone starts with eos" in cause
    assert remedy == "give --decoder-start eos"


@pytest.mark.parametrize(("positions", "warned"), [(15, True), (16, False)])
def test_rows_beyond_positions_of_a_rotary_checkpoint_are_named(tmp_path: Path, positions: int, warned: bool) -> None:
    folder = written(tmp_path / "llama", "llama", max_position_embeddings=positions)
    line = "rows have up to 16 tokens, and the checkpoint was trained with at most 15"
    assert any(line in note for note in begun(folder, "clm").notes) == warned


# Type, a setting, and whether it is used.
SETTINGS: list[tuple[str, dict[str, Any], bool]] = [
    ("llama", {"rms_norm_eps": 1e-2}, True),
    ("llama", {"rope_theta": 7.0, "rope_parameters": None}, True),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, True),
    ("mistral", {"rope_scaling": {"type": "linear", "factor": 4.0}}, True),
    ("mistral", {"sliding_window": 2}, True),
    ("qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}, True),
    ("gemma2", {"final_logit_softcapping": 0.1}, True),
    *((kind, {"activation_function": "relu"}, True) for kind in ("gpt2",)),
    *((kind, {"hidden_act": name}, True) for kind in ("bert", "albert") for name in ("relu", "gelu_new")),
    ("distilbert", {"activation": "relu"}, True),
    *(("llama", {name: True}, False) for name in ("attention_bias", "mlp_bias")),
    *(("llama", {"rope_scaling": {"rope_type": name, "factor": 2.0}}, False) for name in ("linear", "yarn", "dynamic")),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, False),
    ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, False),
    ("llama", {"hidden_act": "gelu"}, False),
    ("llama", {"head_dim": 8}, False),
    ("mistral", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, False),
    ("mistral", {"tie_word_embeddings": True}, False),
    ("qwen2", {"use_sliding_window": True}, False),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, False),
    *((kind, {"rms_norm_eps": 1e-5}, False) for kind in ("qwen3", "gemma", "gemma2")),
    *((kind, {"rope_theta": 500.0}, False) for kind in ("gemma", "gemma2")),
    *((kind, {"rope_parameters": {"rope_theta": 500.0}}, False) for kind in ("gemma", "gemma2")),
    ("gemma2", {"query_pre_attn_scalar": 7}, False),
    ("gpt2", {"scale_attn_weights": False}, False),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, False),
    ("gpt2", {"layer_norm_epsilon": 1e-3}, False),
    ("gpt2", {"activation_function": "silu"}, False),
    *((kind, {"hidden_act": "silu"}, False) for kind in ("bert", "albert", "roberta", "xlm-roberta")),
    *((kind, {"layer_norm_eps": 1e-3}, False) for kind in ("bert", "albert", "roberta", "xlm-roberta")),
    *((kind, {"position_embedding_type": "relative_key"}, False) for kind in ("bert", "roberta")),
    *((kind, {"pad_token_id": 0}, False) for kind in ("roberta", "xlm-roberta")),
    ("bart", {"scale_embedding": True}, False),
    ("bart", {"decoder_layers": 1}, False),
    *((kind, {"a_new_setting": 2}, False) for kind in settings.TYPES),
]


@pytest.mark.parametrize(("kind", "changes", "used"), SETTINGS, ids=lambda value: str(value).replace("/", "-"))
def test_each_setting_is_used_or_refused_by_name(kind: str, changes: dict[str, Any], used: bool) -> None:
    config = {"model_type": kind, "vocab_size": 9, **checkpoints.CONFIGS[kind]}
    plain = settings.read("m", config)
    if not used:
        with pytest.raises(ConfigError) as caught:
            settings.read("m", {**config, **changes})
        (name,) = changes
        assert f"{name} " in str(caught.value) or f"{name}." in str(caught.value) or "rope_" in str(caught.value)
        return
    changed = settings.read("m", {**config, **changes})
    assert (changed.keywords, changed.activation, changed.config) != (plain.keywords, plain.activation, plain.config)


@pytest.mark.parametrize("kind", settings.TYPES)
def test_settings_that_are_off_or_change_no_logits_are_passed_over(kind: str) -> None:
    config = {"model_type": kind, "vocab_size": 9, **checkpoints.CONFIGS[kind]}
    harmless = {"use_cache": True, "bos_token_id": 0, "architectures": ["A"], "torch_dtype": "float32", "new": None}
    changed = settings.read("m", {**config, **harmless, "initializer_range": 0.1, "transformers_version": "5"})
    assert changed.keywords == settings.read("m", config).keywords


def test_other_types_and_unusable_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="model type 'mamba', expected one of bert, "):
        settings.read("m", {"model_type": "mamba"})
    with pytest.raises(ConfigError, match=r"transformers cannot read config\.json"):
        settings.read("m", {"model_type": "llama", **checkpoints.CONFIGS["llama"], "num_attention_heads": 0})
    with pytest.raises(ConfigError, match="num_hidden_layers is 1,000,000,000,000, expected at most 10,000"):
        settings.read("m", {"model_type": "qwen2", **checkpoints.CONFIGS["qwen2"], "num_hidden_layers": 10**12})


def test_one_dropout_for_all_is_said() -> None:
    config = {"model_type": "bert", "vocab_size": 9, **checkpoints.CONFIGS["bert"], "hidden_dropout_prob": 0.2}
    read = settings.read("m", {**config, "attention_probs_dropout_prob": 0.1})
    assert read.keywords["dropout"] == 0.2
    assert read.notes == ("warning: a dropout of 0.2 is used everywhere, instead of attention_probs_dropout_prob 0.1",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "task"),
    [
        ("llama", "model.layers.0.self_attn.q_proj.bias", "classify"),
        ("llama", "model.layers.2.input_layernorm.weight", "clm"),
        ("gpt2", "lm_head.weight", "clm"),
        ("bert", "cls.predictions.decoder.weight", "mlm"),
        ("bert", "cls.predictions.decoder.bias", "mlm"),
    ],
)
def test_a_tensor_without_a_place_is_refused_by_name(tmp_path: Path, kind: str, name: str, task: str) -> None:
    folder = written(tmp_path, kind, more={name: 16})
    with pytest.raises(ConfigError, match=f"the trainer's model cannot use {name}"):
        begun(folder, task)


@pytest.mark.slow
def test_a_mistrals_weights_keep_their_precision(tmp_path: Path) -> None:
    backbone = begun(written(tmp_path, "mistral"), "clm").backbone
    tensors = load_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(backbone.token_embedding.embeddings, tensors["model.embed_tokens.weight"])
    np.testing.assert_array_equal(backbone.token_embedding.reverse_embeddings, tensors["lm_head.weight"].T)
    up = backbone.get_layer("transformer_layer_1")._feedforward_intermediate_dense.kernel
    np.testing.assert_array_equal(up, tensors["model.layers.1.mlp.up_proj.weight"].T)


@pytest.mark.slow
def test_a_loaded_activation_is_kept_by_the_saved_model(tmp_path: Path) -> None:
    folder = written(tmp_path / "from", "bert")
    training.done(tmp_path / "model", task="classify", pooling="first", model=folder, steps=1)
    alone = keras.models.load_model(tmp_path / "model" / "model.keras")
    encoders = [layer for layer in alone._flatten_layers() if type(layer).__name__ == "TransformerEncoder"]
    assert {layer.activation.__name__ for layer in encoders} == {"gelu"}
    done("export", model=tmp_path / "model", format="transformers", output=tmp_path / "to")
    assert json.loads((tmp_path / "to" / "config.json").read_text())["hidden_act"] == "gelu"


class Unwritable(keras.layers.Dense):
    def get_config(self) -> dict[str, Any]:
        raise AttributeError("no such attribute")


def unwritable(manifest: Any) -> keras.Model:
    inputs = keras.Input((manifest.row_length,), dtype="int32", name="input_ids")
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(manifest.tokenizer.vocab_size, 4)(inputs))
    return keras.Model({"input_ids": inputs}, Unwritable(len(manifest.label_names))(pooled))


@pytest.mark.slow
def test_a_model_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path: Path) -> None:
    outcome = training.command(tmp_path, model=f"{__name__}:unwritable")
    assert outcome.status == 2
    assert "Keras could not save this model at the end of the training run (AttributeError: " in outcome.error[0]
    assert '"step"' not in outcome.out
