"""Export a trained model: make the folder in a temporary directory, then copy it to `--output`.

A local folder appears complete, by a single rename. On gs://, README.md is written last.
"""

import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pipelines.train import model_files
from pipelines.train.export import bert
from pipelines.train.model_files import TrainedModel
from pipelines.train.models import backbones
from pipelines.train.models.families import FAMILIES, family_of
from pipelines.train.predict import loading
from pipelines.train.tasks import TASKS
from tfrecord_io.errors import ConfigError, OutputError
from tfrecord_io.shown import visible_line

_CARD = "README.md"
_MOST_LABELS = 50


def export(model_dir: str, *, kind: str, output: str, build: str | None = None) -> list[str]:
    """Export a trained model to a new folder, and return the names of its files.

    `kind`: transformers, saved-model or keras. `build`: the user's function that built the model, if any.

    Raises: ConfigError if the model does not support the format; ReaderError if it cannot be read; OutputError if
        `output` is not empty or cannot be written.
    """
    _require_free(output)
    trained = model_files.read(model_dir)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        longest, tokenizer = 0, folder if kind == "transformers" else folder / model_files.TOKENIZER
        if kind == "transformers":
            longest = _write_transformers(model_dir, trained, folder, build)
        elif kind == "saved-model":
            # Inputs are token ids, since no TensorFlow operation tokenizes like the tokenizer.
            model = loading.load_model(model_dir, trained, build=build).model
            model.export(str(folder), format="tf_saved_model", verbose=False)
        else:
            _require_loadable(trained)
            with loading.local_copy(f"{model_dir.rstrip('/')}/model.keras") as path:
                shutil.copy(path, folder / "model.keras")
        model_files.copy_tokenizer(model_dir, str(tokenizer))
        if longest and (settings := folder / "tokenizer_config.json").exists():
            # PyTorch fails for texts beyond the model's last position.
            config = json.loads(settings.read_text(encoding="utf-8"))
            if config.get("model_max_length", longest + 1) > longest:
                config["model_max_length"] = longest
                settings.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / _CARD).write_text(_card(trained, kind=kind), encoding="utf-8")
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        _put(folder, files, output.rstrip("/"))
    return files


def _write_transformers(model_dir: str, trained: TrainedModel, folder: Path, build: str | None) -> int:
    families = ["BertBackbone", *(family.backbone for family in FAMILIES.values() if family.causal_class)]
    if backbones.is_users(trained.model):
        raise ConfigError(
            f"--format transformers with your own model {trained.model}, for which transformers has no class, expected "
            "a BERT or decoder of KerasHub",
            remedy="give --format saved-model or keras, or train with --model bert-SIZE, gpt2-SIZE or a preset",
        )
    built = loading.load_model(model_dir, trained, build=build)
    backbone, family = built.backbone, type(built.backbone).__name__
    if family not in families:
        raise ConfigError(
            f"--format transformers with a {_model(family)}, expected {' or '.join(map(_model, families))}",
            remedy="give --format saved-model or keras",
        )
    if family == "BertBackbone":
        bert.write(built, trained, folder)
    else:
        write_decoder(backbone, trained, folder)
    return int(getattr(backbone, "max_sequence_length", 0))  # 0: unlimited


def _model(backbone: str) -> str:
    return backbone.removesuffix("Backbone")


def _require_loadable(trained: TrainedModel) -> None:
    family = str((trained.backbone or {}).get("class", ""))
    if TASKS[trained.task].head == "masked" and ("Roberta" in family or "DistilBert" in family):
        raise ConfigError(
            f"--format keras with a {_model(family)} trained for mlm: its embedding belongs to two layers, "
            "which Keras cannot load from a file",
            remedy="give --format saved-model",
        )


def _require_free(output: str) -> None:
    try:
        occupied = tf.io.gfile.exists(output) and (not tf.io.gfile.isdir(output) or bool(tf.io.gfile.listdir(output)))
    except tf.errors.OpError as error:
        raise _unwritable(output, error) from error
    if occupied:
        raise OutputError(
            f"--output {output}: the folder is not empty, expected a new or empty folder",
            remedy="give another --output, or remove this folder",
        )


def _put(folder: Path, files: list[str], output: str) -> None:
    unfinished = output if "://" in output else f"{output}.{os.getpid()}.part"
    try:
        for name in sorted(files, key=lambda name: name == _CARD):
            target = f"{unfinished}/{name}"
            tf.io.gfile.makedirs(os.path.dirname(target))
            if unfinished == output:
                tf.io.gfile.copy(str(folder / name), target, overwrite=True)
            else:
                shutil.copyfile(folder / name, target)  # drops the private mode of temporary files
        if unfinished != output:
            os.replace(unfinished, output)  # replaces an empty folder, fails for a non-empty one
    except (tf.errors.OpError, OSError) as error:
        if unfinished != output:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise _unwritable(output, error) from error


def _unwritable(output: str, error: Any) -> OutputError:
    message = getattr(error, "message", None) or str(error)
    return OutputError(
        f"--output {output}: cannot be written ({message})", remedy="check the path and your permission to write"
    )


def _card(trained: TrainedModel, *, kind: str) -> str:
    manifest, facts = trained.manifest, trained.manifest.tokenizer
    revision = manifest.source.get("revision")
    rows = [
        ("task", trained.task + (", a number" if trained.regression else "")),
        ("architecture", trained.model),
        ("data", f"{manifest.name}" + (f", revision {revision}" if revision else "")),
        ("fingerprint of the data", manifest.fingerprint),
        ("tokenizer", f"{facts.name}, {facts.vocab_size:,} entries, content {facts.content_sha256}"),
        ("tokens in a row", f"{manifest.row_length:,}, padded on the {facts.padding_side}"),
        ("steps", f"{trained.steps:,}"),
        ("precision", trained.precision),
    ]
    if trained.pooling is not None:
        rows.append(("pooling", trained.pooling))
    if TASKS[trained.task].head == "masked":
        rows.append(("mask probability", f"{trained.mask_probability:g}"))
    if TASKS[trained.task].labels and not trained.regression:
        names = trained.label_names
        more = f" … ({len(names):,} in all)" if len(names) > _MOST_LABELS else ""
        rows.append(("labels", ", ".join(names[:_MOST_LABELS]) + more))
    rows += [(f"{name} on {trained.eval_split}", f"{value:.6g}") for name, value in trained.metrics.items()]
    table = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)
    task = TASKS[trained.task]
    name = f"AutoModelFor{task.auto_class}" if task.auto_class else "AutoModel"
    tag = f"pipeline_tag: {task.hub_task}\n" if task.hub_task else ""
    header = f"---\nlibrary_name: {'transformers' if kind == 'transformers' else 'keras'}\n{tag}---\n"
    title = f"# {_cell(manifest.name)}: {trained.task}"
    return f"{header}\n{title}\n\n| | |\n|---|---|\n{table}\n\n{_USES[kind].replace('CLASS', name)}\n"


_USES = {
    "transformers": """```python
from transformers import CLASS, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIR")
model = CLASS.from_pretrained("DIR")
```""",
    "saved-model": """`serving_default` takes int32 ids of the tokenizer in `tokenizer/`, by name, padded as above.

```python
import tensorflow as tf

serve = tf.saved_model.load("DIR").signatures["serving_default"]
```""",
    "keras": """The model takes token ids of the tokenizer in `tokenizer/`.

```python
import keras, keras_hub

model = keras.models.load_model("DIR/model.keras")
```""",
}


def _cell(value: str) -> str:
    return visible_line(value).replace("|", "\\|")


def write_decoder(backbone: Any, trained: TrainedModel, folder: Path) -> None:
    """Write config.json and model.safetensors of a decoder with KerasHub's exporter.

    Raises: ConfigError if the task is neither clm nor dpo, or if the exporter leaves out weights.
    """
    family = type(backbone).__name__
    model = _model(family)
    if TASKS[trained.task].auto_class != "CausalLM":
        raise ConfigError(
            f"--format transformers with a {model} trained for {trained.task}, expected one trained for clm or dpo",
            remedy="give --format saved-model or keras, or train a BERT",
        )
    if getattr(backbone.token_embedding, "tie_weights", True):
        backbone.export_to_transformers(str(folder))
    else:
        hub = backbones.keras_hub(trained.model).models
        whole = getattr(hub, family.replace("Backbone", "CausalLM"))(backbone=backbone, preprocessor=None)
        whole.export_to_transformers(str(folder))
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        written = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    if (expected := backbone.count_params()) != written:
        raise ConfigError(
            f"--format transformers with this {model}: KerasHub's exporter omits {expected - written:,} of "
            f"{expected:,} weights",
            remedy="give --format saved-model or keras",
        )
    path, facts = folder / "config.json", trained.manifest.tokenizer
    config = json.loads(path.read_text(encoding="utf-8"))
    if family == "GemmaBackbone":  # KerasHub 0.32 uses heads * size as `hidden` of the query weights
        weights = load_file(folder / "model.safetensors")
        for name in [name for name in weights if name.endswith("q_proj.weight")]:
            weights[name] = np.ascontiguousarray(weights[name].T.reshape(backbone.hidden_dim, -1).T)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokens = {"bos_token_id": facts.bos_id, "eos_token_id": facts.end_id, "pad_token_id": facts.pad_id}
    config |= {"architectures": [family_of(backbone).causal_class], **tokens, "torch_dtype": "float32"}
    if family == "GPT2Backbone":
        config["activation_function"] = backbones.activation_of(backbone)
    if getattr(backbone, "head_dim", None) is not None:  # KerasHub writes hidden_size / heads for Mistral
        config["head_dim"] = backbone.head_dim
    if (factor := getattr(backbone, "rope_scaling_factor", 1.0)) != 1.0:  # KerasHub's exporter omits it
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    if family == "QwenBackbone":  # KerasHub's exporter omits these settings
        config["use_sliding_window"] = backbone.use_sliding_window_attention
        config["sliding_window"] = backbone.sliding_window_size
    for target, content in ((path, config), (folder / "generation_config.json", tokens)):
        target.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
