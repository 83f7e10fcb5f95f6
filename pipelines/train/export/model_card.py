"""The model card of an export: what the model is, what it was trained on, how well it does, how it is opened."""

from __future__ import annotations

from pipelines.train.model_files import TrainedModel
from tfrecord_io.shown import visible_line

__all__ = ["text"]

_MOST_LABELS = 50
# The hub's name of each task, and the class that opens it.
_TASKS = {
    "classify": ("text-classification", "AutoModelForSequenceClassification"),
    "tokens": ("token-classification", "AutoModelForTokenClassification"),
    "mlm": ("fill-mask", "AutoModelForMaskedLM"),
    "clm": ("text-generation", "AutoModelForCausalLM"),
    "span": ("question-answering", "AutoModelForQuestionAnswering"),
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
    pipeline, name = _TASKS.get(trained.task, ("", "AutoModel"))
    tag = f"pipeline_tag: {pipeline}\n" if pipeline else ""
    header = f"---\nlibrary_name: {'transformers' if kind == 'transformers' else 'keras'}\n{tag}---\n"
    title = f"# {_cell(manifest.name)}: {trained.task}"
    return f"{header}\n{title}\n\n| | |\n|---|---|\n{table}\n\n{_USES[kind].replace('CLASS', name)}\n"


_USES = {
    "transformers": """```python
from transformers import CLASS, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIR")
model = CLASS.from_pretrained("DIR")
```""",
    "saved-model": """The SavedModel takes token ids, not strings: tokenize with the files in `tokenizer/`, pad to the
length above, and call the signature `serving_default` with int32 arrays by name.

```python
import tensorflow as tf

serve = tf.saved_model.load("DIR").signatures["serving_default"]
```""",
    "keras": """The model takes token ids, which the tokenizer in `tokenizer/` gives.

```python
import keras, keras_hub

model = keras.models.load_model("DIR/model.keras")
```""",
}


def _cell(value: str) -> str:
    return visible_line(value).replace("|", "\\|")
