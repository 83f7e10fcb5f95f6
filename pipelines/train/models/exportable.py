"""Which models can be exported to transformers."""

from typing import Any

from pipelines.train.config import Pooling, Task
from pipelines.train.models.families import FAMILIES
from pipelines.train.tasks import TASKS


def export_problem(backbone: Any, *, task: Task, pooling: Pooling | None, padding_side: str) -> tuple[str, str] | None:
    """Return why a trained model cannot be exported to transformers, and what to change; None if it can."""
    model, decoders = _name(type(backbone).__name__), [_name(name) for name in _DECODERS]
    if model == "Bert":
        if TASKS[task].head == "rows" and pooling != "first":
            return (
                f"transformers' class for BERT uses the first token, not pooling {pooling}",
                "train with --pooling first",
            )
        if TASKS[task].head == "rows" and padding_side != "right":
            return "transformers' class for BERT uses the first token, which is padding here", (
                "build the dataset with a tokenizer that pads on the right"
            )
    elif model not in decoders:
        return f"the architecture is {model}, expected one of Bert, {', '.join(decoders)}", "train one of these models"
    elif TASKS[task].auto_class != "CausalLM":
        return f"{model} is trained for {task}, expected clm or dpo", "train a BERT"
    return None


_DECODERS = sorted({family.backbone for family in FAMILIES.values() if family.causal_class})


def _name(backbone: str) -> str:
    return backbone.removesuffix("Backbone")
