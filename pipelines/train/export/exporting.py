"""Export a trained model. A local folder appears complete, by a single rename. On gs://, README.md is written last."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from pipelines.train import model_files
from pipelines.train.export import bert
from pipelines.train.model_files import TrainedModel
from pipelines.train.models import backbones, fit
from pipelines.train.models.exportable import export_problem
from pipelines.train.models.families import FAMILIES, family_of
from pipelines.train.predict import loading
from pipelines.train.tasks import TASKS
from tfrecord_io.errors import ConfigError, OutputError
from tfrecord_io.shown import visible_line

_CARD = "README.md"
_MOST_LABELS = 50


def export(model_dir: str, *, kind: str, output: str, build: str | None = None) -> list[str]:
    """Export a trained model to the new folder `output`, and return the names of its files.

    `kind`: transformers, saved-model or keras. `build`: the user's function that built the model, if any. Raises:
    ConfigError if the model does not support the format; ReaderError; OutputError if `output` is not empty or cannot be
    written.
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
            name = str((trained.backbone or {}).get("class", ""))
            inner = [family.backbone for family in FAMILIES.values() if family.inner_embedding]
            if TASKS[trained.task].head == "masked" and name in inner:
                raise ConfigError(
                    f"--format keras with a {_model(name)} trained for mlm: its embedding belongs to two layers, which "
                    "Keras cannot load from a file",
                    remedy="give --format saved-model",
                )
            with loading.local_copy(f"{model_dir.rstrip('/')}/model.keras") as path:
                shutil.copy(path, folder / "model.keras")
        model_files.copy_tokenizer(model_dir, str(tokenizer))
        if longest and (settings := folder / "tokenizer_config.json").exists():
            # PyTorch fails for longer texts.
            config = json.loads(settings.read_text(encoding="utf-8"))
            if config.get("model_max_length", longest + 1) > longest:
                config["model_max_length"] = longest
                settings.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / _CARD).write_text(_card(trained, kind=kind), encoding="utf-8")
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        _put(folder, files, output.rstrip("/"))
    return files


def _write_transformers(model_dir: str, trained: TrainedModel, folder: Path, build: str | None) -> int:
    if backbones.is_users(trained.model):
        raise ConfigError(
            f"--format transformers with your own model {trained.model}: transformers has no class for it, expected a "
            "BERT or decoder of KerasHub",
            remedy="give --format saved-model or keras, or train with --model bert-SIZE, gpt2-SIZE or a preset",
        )
    built = loading.load_model(model_dir, trained, build=build)
    backbone, side = built.backbone, trained.manifest.tokenizer.padding_side
    if problem := export_problem(backbone, task=trained.task, pooling=trained.pooling, padding_side=side):
        cause, remedy = problem
        raise ConfigError(
            f"--format transformers with this model: {cause}", remedy=f"give --format saved-model or keras, or {remedy}"
        )
    if type(backbone).__name__ == "BertBackbone":
        bert.write(built, trained, folder)
    else:
        write_decoder(backbone, trained, folder)
    return int(getattr(backbone, "max_sequence_length", 0))  # 0: unlimited


def _model(backbone: str) -> str:
    return backbone.removesuffix("Backbone")


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
    # `copyfile` drops the private mode of temporary files.
    copy = tf.io.gfile.copy if unfinished == output else shutil.copyfile
    try:
        for name in sorted(files, key=lambda name: name == _CARD):
            tf.io.gfile.makedirs(os.path.dirname(f"{unfinished}/{name}"))
            copy(str(folder / name), f"{unfinished}/{name}")
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
    task, names = TASKS[trained.task], trained.label_names
    more = f" … ({len(names):,} in all)" if len(names) > _MOST_LABELS else ""
    rows: list[tuple[str, str | None]] = [
        ("task", trained.task + (", a number" if trained.regression else "")),
        ("architecture", trained.model),
        ("data", f"{manifest.name}" + (f", revision {revision}" if revision else "")),
        ("fingerprint of the data", manifest.fingerprint),
        ("tokenizer", f"{facts.name}, {facts.vocab_size:,} entries, content {facts.content_sha256}"),
        ("tokens in a row", f"{manifest.row_length:,}, padded on the {facts.padding_side}"),
        ("steps", f"{trained.steps:,}"),
        ("precision", trained.precision),
        ("pooling", trained.pooling),
        ("mask probability", f"{trained.mask_probability:g}" if task.head == "masked" else None),
        ("labels", ", ".join(names[:_MOST_LABELS]) + more if task.labels and not trained.regression else None),
        *((f"{name} on {trained.eval_split}", f"{value:.6g}") for name, value in trained.metrics.items()),
    ]
    table = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows if value is not None)
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
    """Write config.json and model.safetensors of a decoder to a folder, with KerasHub's exporter.

    Raises: ConfigError if the exporter leaves out weights.
    """
    family, name = family_of(backbone), type(backbone).__name__
    model = _model(name)
    if getattr(backbone.token_embedding, "tie_weights", True):
        backbone.export_to_transformers(str(folder))
    else:
        hub = backbones.keras_hub(trained.model).models
        whole = getattr(hub, f"{model}CausalLM")(backbone=backbone, preprocessor=None)
        whole.export_to_transformers(str(folder))
    written = sum(fit.in_safetensors(folder / "model.safetensors"))
    if (expected := backbone.count_params()) != written:
        raise ConfigError(
            f"--format transformers with this {model}: KerasHub's exporter omits {expected - written:,} of "
            f"{expected:,} weights",
            remedy="give --format saved-model or keras",
        )
    if family.mixes_query:
        weights = load_file(folder / "model.safetensors")
        for name in [name for name in weights if name.endswith("q_proj.weight")]:
            weights[name] = np.ascontiguousarray(weights[name].T.reshape(backbone.hidden_dim, -1).T)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    path, facts = folder / "config.json", trained.manifest.tokenizer
    config = json.loads(path.read_text(encoding="utf-8"))
    tokens = {"bos_token_id": facts.bos_id, "eos_token_id": facts.end_id, "pad_token_id": facts.pad_id}
    config |= {"architectures": [family.causal_class], **tokens, "torch_dtype": "float32"}
    if family.acts:
        config[family.acts] = backbones.activation_of(backbone)
    own = {setting: getattr(backbone, attribute) for setting, attribute in family.exported.items()}
    config |= {setting: value for setting, value in own.items() if value is not None}
    if (factor := getattr(backbone, "rope_scaling_factor", 1.0)) != 1.0:  # KerasHub's exporter omits it
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    for target, content in ((path, config), (folder / "generation_config.json", tokens)):
        target.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
