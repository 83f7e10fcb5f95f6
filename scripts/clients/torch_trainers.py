"""Compare 20 losses of PyTorch's trainers on our exports with those on rows that they prepare themselves.

chat                SFTTrainer, assistant_only_loss=True: TRL and our build both use TRL's *_training.jinja
plain               SFTTrainer on texts
packed              SFTTrainer, padding_free=True: packed conversations have the logits of separate ones
classification      transformers' Trainer on `pad`
language_modeling   transformers' Trainer on `concat`, as in run_clm.py
preferences         DPOTrainer, as in docs/how-to/layouts/preference.md; RewardTrainer takes joined prompts as they are
"""

import json
import pathlib
import sys
import types
from typing import Any

import datasets
import torch
import transformers
import trl

from prep_tfrecords import build, export
from scripts.clients.expected import WORK
from scripts.clients.trl_templates import TEMPLATES, toy_tokenizer

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
HERE = pathlib.Path(WORK, "trainers")
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SETTINGS = {"per_device_train_batch_size": 4, "max_steps": 20, "logging_steps": 1, "learning_rate": 1e-3}
QUIET = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
CHATS = ("qwen3", "llama3", "gemma3", "glm4moe", "phi3")
Rows = list[dict[str, Any]]


def small_model(tokenizer: Any, model: str = "Llama") -> Any:
    """Return a small model that always begins with the same weights."""
    transformers.set_seed(1)
    config = getattr(transformers, f"{model}Config")(vocab_size=len(tokenizer), **SIZES, use_cache=False)
    kind = transformers.AutoModelForCausalLM if model == "Llama" else transformers.AutoModelForSequenceClassification
    return kind.from_config(config)


def trainer(rows: Any, tokenizer: Any, *, model: str = "Llama", collator: Any = None, **settings: Any) -> Any:
    """Return SFTTrainer, or Trainer with a collator, for a small model."""
    made, arguments = (transformers.Trainer, transformers.TrainingArguments)
    if collator is None:
        made, arguments = (trl.SFTTrainer, trl.SFTConfig)
    chosen = arguments(output_dir=str(HERE / "out"), **SETTINGS, **QUIET, **settings)
    return made(small_model(tokenizer, model), chosen, collator, train_dataset=rows, processing_class=tokenizer)


def losses(made: Any) -> list[float]:
    """Train, from the same random numbers."""
    transformers.set_seed(1)
    made.remove_callback(transformers.PrinterCallback)
    made.train()
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def exported(name: str, rows: Rows, tokenizer: Any, **options: Any) -> Any:
    """Return the rows of a build, in their order, from its Parquet export."""
    data, output = datasets.Dataset.from_list(rows), HERE / name
    build(data, output=output, tokenizer=tokenizer, shuffle=False, overwrite=True, max_length=1024, **options)
    export(output, to="parquet", output=HERE / f"{name}-parquet")
    return datasets.load_dataset(str(HERE / f"{name}-parquet"), split="train", cache_dir=str(HERE / "cache"))


def report(what: str, ours: Any, theirs: Any) -> None:
    """Print how far apart the losses are; exit unless they are equal."""
    ours, theirs = losses(ours), losses(theirs)
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    print(f"{what}: {len(ours)} losses {apart} apart, {ours[0]:.3f} to {ours[-1]:.3f}")
    if apart:
        sys.exit(f"{what}: {ours}, {theirs}")


def read(name: str) -> Rows:
    """Return the rows of an example."""
    return [json.loads(line) for line in (EXAMPLES / name / "train.jsonl").open(encoding="utf-8")]


def conversations() -> Rows:
    """Return conversations with a thought in each answer."""
    rows = read("chats")
    for message in (message for row in rows for message in row["messages"] if message["role"] == "assistant"):
        message["reasoning_content"] = "Let me think."
    return rows


def chat() -> None:
    """Compare five templates."""
    rows = conversations()
    for name in CHATS:
        tokenizer = toy_tokenizer((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))
        template = str(TEMPLATES / f"{name}_training.jinja")
        ours = exported(name, rows, tokenizer, layout="chat", chat_template=template)
        raw = trainer(datasets.Dataset.from_list(rows), tokenizer, assistant_only_loss=True, max_length=None)
        report(name, trainer(ours, tokenizer, max_length=None), raw)


def plain() -> None:
    """Compare texts."""
    tokenizer = toy_tokenizer("")
    rows = [{"text": f"{row['text']}</s>"} for row in read("reviews")]
    raw = trainer(datasets.Dataset.from_list(rows), tokenizer, max_length=None)
    report("texts", trainer(exported("plain", rows, tokenizer, layout="pad"), tokenizer, max_length=None), raw)


def packed() -> None:
    """Compare the logits of packed documents with each document's alone, and train on them."""
    tokenizer = toy_tokenizer((TEMPLATES / "llama3_training.jinja").read_text(encoding="utf-8"))
    rows = exported("packed", read("chats"), tokenizer, layout="chat", pack_rows=True)
    made = trainer(rows, tokenizer, padding_free=True, max_length=None)
    batch = next(iter(made.get_train_dataloader()))
    starts = torch.nonzero(batch["position_ids"][0] == 0)[:, 0].tolist()
    documents = zip(starts, [*starts[1:], None], strict=True)
    with torch.no_grad():
        together = made.model(**batch).logits[0]
        alone = torch.cat([made.model(batch["input_ids"][:, slice(*each)]).logits[0] for each in documents])
    apart = float((together - alone).abs().max())
    found = losses(made)
    print(f"packed: {len(starts)} documents in a batch, logits {apart:.1e} apart, {found[0]:.3f} to {found[-1]:.3f}")
    assert apart < 1e-6
    assert found[-1] < found[0]


def classification() -> None:
    """Compare labels."""
    tokenizer, rows = toy_tokenizer(""), read("reviews")
    named = datasets.Dataset.from_list(rows).class_encode_column("label")
    collator = transformers.DataCollatorWithPadding(tokenizer)
    ours = exported("classify", rows, tokenizer, layout="pad", label_column="label")
    raw = named.map(lambda row: tokenizer(row["text"]), remove_columns="text")
    report("classification", *(trainer(each, tokenizer, model="Bert", collator=collator) for each in (ours, raw)))


def language_modeling() -> None:
    """Compare blocks of one stream of tokens."""
    tokenizer, rows = toy_tokenizer(""), read("reviews")
    stream = [token for row in rows for token in tokenizer(row["text"])["input_ids"]]
    blocks = [stream[at : at + 1024] for at in range(0, len(stream) - 1023, 1024)]
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    options = {"layout": "concat", "special_tokens": "none", "remainder": "drop"}
    ours = exported("causal", [{"text": row["text"]} for row in rows], tokenizer, **options)
    raw = datasets.Dataset.from_list([{"input_ids": block} for block in blocks])
    report("language modeling", *(trainer(each, tokenizer, collator=collator) for each in (ours, raw)))


class PreparedDPOTrainer(trl.DPOTrainer):
    """DPOTrainer for a tokenized dataset."""

    def _prepare_dataset(self, dataset: Any, *args: Any) -> Any:
        return dataset


def preferences() -> None:
    """Compare pairs."""
    tokenizer, rows = toy_tokenizer((TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")), read("preferences")
    made = []
    ours = exported("dpo", rows, tokenizer, layout="preference")
    for kind, data in ((PreparedDPOTrainer, ours), (trl.DPOTrainer, datasets.Dataset.from_list(rows))):
        models = [small_model(tokenizer) for _ in range(2)]
        settings = trl.DPOConfig(output_dir=str(HERE / "out"), max_length=None, **SETTINGS, **QUIET)
        made.append(kind(*models, settings, train_dataset=data, processing_class=tokenizer))
    report("DPO", *made)
    export(HERE / "dpo", to="parquet", output=HERE / "joined", join_prompts=True)
    joined: Any = datasets.load_dataset(str(HERE / "joined"), split="train", cache_dir=str(HERE / "cache"))
    settings = trl.RewardConfig(max_length=None, **QUIET)
    kept = trl.RewardTrainer._prepare_dataset(types.SimpleNamespace(), joined, tokenizer, settings, "train")
    assert kept.to_dict() == joined.to_dict()
    print(f"RewardTrainer keeps {len(kept)} rows")


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    for compare in (chat, plain, packed, classification, language_modeling, preferences):
        compare()
