"""The model card of an export: what the model is, what it was trained on, how well it does, how it is opened."""

from __future__ import annotations

from pipelines.train.model_files import TrainedModel
from tfrecord_io.shown import visible_line

__all__ = ["text"]

_PIPELINES = {
    "classify": "text-classification",
    "tokens": "token-classification",
    "mlm": "fill-mask",
    "clm": "text-generation",
    "span": "question-answering",
}
_MOST_LABELS = 50
_AUTO_CLASSES = {
    "classify": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
    "mlm": "AutoModelForMaskedLM",
    "clm": "AutoModelForCausalLM",
    "span": "AutoModelForQuestionAnswering",
}


def text(trained: TrainedModel, *, kind: str) -> str:
    """README.md, in Markdown with the header that the hub reads."""
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
    if trained.task == "mlm":
        rows.append(("mask probability", f"{trained.mask_probability:g}"))
    if trained.task in ("classify", "tokens") and not trained.regression:
        names = trained.label_names
        more = f" … ({len(names):,} in all)" if len(names) > _MOST_LABELS else ""
        rows.append(("labels", ", ".join(names[:_MOST_LABELS]) + more))
    rows += [(f"{name} on {trained.eval_split}", f"{value:.6g}") for name, value in trained.metrics.items()]
    table = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)
    title = f"# {_cell(manifest.name)}: {trained.task}"
    return f"{_header(trained, kind=kind)}\n{title}\n\n| | |\n|---|---|\n{table}\n\n{_use(trained, kind=kind)}\n"


def _header(trained: TrainedModel, *, kind: str) -> str:
    library = "transformers" if kind == "transformers" else "keras"
    tag = _PIPELINES.get(trained.task)
    return f"---\nlibrary_name: {library}\n{f'pipeline_tag: {tag}{chr(10)}' if tag else ''}---\n"


_WITH_TRANSFORMERS = """```python
from transformers import {name}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIR")
model = {name}.from_pretrained("DIR")
```"""
_WITH_TENSORFLOW = """The SavedModel takes token ids, not strings: tokenize with the files in `tokenizer/`, pad to the
length above, and call the signature `serving_default` with int32 arrays by name.

```python
import tensorflow as tf

serve = tf.saved_model.load("DIR").signatures["serving_default"]
```"""
_WITH_KERAS = """The model takes token ids, which the tokenizer in `tokenizer/` gives.

```python
import keras, keras_hub

model = keras.models.load_model("DIR/model.keras")
```"""


def _use(trained: TrainedModel, *, kind: str) -> str:
    if kind == "transformers":
        return _WITH_TRANSFORMERS.format(name=_AUTO_CLASSES.get(trained.task, "AutoModel"))
    return _WITH_TENSORFLOW if kind == "saved-model" else _WITH_KERAS


def _cell(value: str) -> str:
    return visible_line(value).replace("|", "\\|")
