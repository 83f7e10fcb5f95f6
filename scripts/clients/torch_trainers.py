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
    """Return a small Llama or, for "Bert", classifier, with random weights that are always the same."""
    transformers.set_seed(1)
    config = getattr(transformers, f"{model}Config")(vocab_size=len(tokenizer), **SIZES, use_cache=False)
    kind = transformers.AutoModelForCausalLM if model == "Llama" else transformers.AutoModelForSequenceClassification
    return kind.from_config(config)


def trainer(rows: Any, tokenizer: Any, *, model: str = "Llama", collator: Any = None, **settings: Any) -> Any:
    """Return TRL's SFTTrainer, or with a `collator` transformers' Trainer, of a small model on these rows."""
    kind, arguments = (transformers.Trainer, transformers.TrainingArguments)
    if collator is None:
        kind, arguments = (trl.SFTTrainer, trl.SFTConfig)
    chosen = arguments(output_dir=str(HERE / "out"), **SETTINGS, **QUIET, **settings)
    return kind(small_model(tokenizer, model), chosen, collator, train_dataset=rows, processing_class=tokenizer)


def losses(trainer: Any) -> list[float]:
    """Train with one of the trainers, and return the loss of each step."""
    transformers.set_seed(1)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def exported(name: str, rows: Rows, tokenizer: Any, **options: Any) -> Any:
    """Build a dataset from `rows` with these options, export it to Parquet, and return its rows in their order."""
    data, output = datasets.Dataset.from_list(rows), HERE / name
    build(data, output=output, tokenizer=tokenizer, shuffle=False, overwrite=True, max_length=1024, **options)
    export(output, to="parquet", output=HERE / f"{name}-parquet")
    return datasets.load_dataset(str(HERE / f"{name}-parquet"), split="train", cache_dir=str(HERE / "cache"))


def report(name: str, our_trainer: Any, their_trainer: Any) -> None:
    """Train with both trainers, and print the largest difference of their losses; exit with an error if not 0."""
    ours, theirs = losses(our_trainer), losses(their_trainer)
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    print(f"{name}: {len(ours)} losses {apart} apart, {ours[0]:.3f} to {ours[-1]:.3f}")
    if apart:
        sys.exit(f"{name}: {ours}, {theirs}")


def _read(name: str) -> Rows:
    return [json.loads(line) for line in (EXAMPLES / name / "train.jsonl").open(encoding="utf-8")]


def chat() -> None:
    """Compare SFTTrainer's losses on our export of conversations with those on the conversations: five templates."""
    rows = _read("chats")
    for message in (message for row in rows for message in row["messages"] if message["role"] == "assistant"):
        message["reasoning_content"] = "Let me think."
    for name in CHATS:
        tokenizer = toy_tokenizer((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))
        template = str(TEMPLATES / f"{name}_training.jinja")
        ours = exported(name, rows, tokenizer, layout="chat", chat_template=template)
        raw = trainer(datasets.Dataset.from_list(rows), tokenizer, assistant_only_loss=True, max_length=None)
        report(name, trainer(ours, tokenizer, max_length=None), raw)


def plain() -> None:
    """Compare SFTTrainer's losses on our export of texts with those on the texts."""
    tokenizer = toy_tokenizer("")
    rows = [{"text": f"{row['text']}</s>"} for row in _read("reviews")]
    raw = trainer(datasets.Dataset.from_list(rows), tokenizer, max_length=None)
    report("texts", trainer(exported("plain", rows, tokenizer, layout="pad"), tokenizer, max_length=None), raw)


def packed() -> None:
    """Compare the logits of packed conversations with those of each one alone, and train on the packed ones."""
    tokenizer = toy_tokenizer((TEMPLATES / "llama3_training.jinja").read_text(encoding="utf-8"))
    rows = exported("packed", _read("chats"), tokenizer, layout="chat", pack_rows=True)
    on_packed = trainer(rows, tokenizer, padding_free=True, max_length=None)
    batch = next(iter(on_packed.get_train_dataloader()))
    starts = torch.nonzero(batch["position_ids"][0] == 0)[:, 0].tolist()
    documents = zip(starts, [*starts[1:], None], strict=True)
    with torch.no_grad():
        together = on_packed.model(**batch).logits[0]
        alone = torch.cat([on_packed.model(batch["input_ids"][:, slice(*ends)]).logits[0] for ends in documents])
    apart = float((together - alone).abs().max())
    first, *_, last = losses(on_packed)
    print(f"packed: {len(starts)} documents in a batch, logits {apart:.1e} apart, {first:.3f} to {last:.3f}")
    assert apart < 1e-6
    assert last < first


def classification() -> None:
    """Compare Trainer's losses on our export of labelled texts with those on texts that transformers tokenizes."""
    tokenizer, rows = toy_tokenizer(""), _read("reviews")
    named = datasets.Dataset.from_list(rows).class_encode_column("label")
    collator = transformers.DataCollatorWithPadding(tokenizer)
    ours = exported("classify", rows, tokenizer, layout="pad", label_column="label")
    raw = named.map(lambda row: tokenizer(row["text"]), remove_columns="text")
    report("classification", *(trainer(data, tokenizer, model="Bert", collator=collator) for data in (ours, raw)))


def language_modeling() -> None:
    """Compare Trainer's losses on our export of joined texts with those on blocks of 1,024 tokens cut here."""
    tokenizer, rows = toy_tokenizer(""), _read("reviews")
    stream = [token for row in rows for token in tokenizer(row["text"])["input_ids"]]
    blocks = [stream[at : at + 1024] for at in range(0, len(stream) - 1023, 1024)]
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    options = {"layout": "concat", "special_tokens": "none", "remainder": "drop"}
    ours = exported("causal", [{"text": row["text"]} for row in rows], tokenizer, **options)
    raw = datasets.Dataset.from_list([{"input_ids": block} for block in blocks])
    report("language modeling", *(trainer(data, tokenizer, collator=collator) for data in (ours, raw)))


class PreparedDPOTrainer(trl.DPOTrainer):
    """TRL's DPOTrainer for a dataset that is tokenized already."""

    def _prepare_dataset(self, dataset: Any, *args: Any) -> Any:
        return dataset


def preferences() -> None:
    """Compare DPOTrainer's losses on our export of pairs with those on the pairs; RewardTrainer must keep our rows."""
    tokenizer, rows = toy_tokenizer((TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")), _read("preferences")
    trainers = []
    ours = exported("dpo", rows, tokenizer, layout="preference")
    for kind, data in ((PreparedDPOTrainer, ours), (trl.DPOTrainer, datasets.Dataset.from_list(rows))):
        models = [small_model(tokenizer) for _ in range(2)]
        settings = trl.DPOConfig(output_dir=str(HERE / "out"), max_length=None, **SETTINGS, **QUIET)
        trainers.append(kind(*models, settings, train_dataset=data, processing_class=tokenizer))
    report("DPO", *trainers)
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
