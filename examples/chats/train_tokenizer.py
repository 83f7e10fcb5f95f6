"""Trains the tokenizer of this example, with a chat template: `python examples/chats/train_tokenizer.py [OUTDIR]`.

    train.jsonl, all contents ──► byte-level BPE ──► <|im_start|>, <|im_end|> and the template below ──► OUTDIR

The folder loads with `transformers.AutoTokenizer.from_pretrained(OUTDIR)`, without a network, and is the same bytes on
every run.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Sequence

# It would say that it found no PyTorch, which nothing here needs.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TRAIN_FILE = pathlib.Path(__file__).parent / "train.jsonl"
FOLDER = "out/tokenizers/chats"
PAD, START, END = "<pad>", "<|im_start|>", "<|im_end|>"
VOCAB_SIZE = 600
MAX_LENGTH = 128

# A turn is <|im_start|>role, a new line, the content, <|im_end|>, a new line. What stands between the markers
# `generation` and `endgeneration` is what a model is to learn to say.
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def train(texts: Sequence[str], *, vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """A tokenizer that knows every byte, and how a conversation is written down."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=MAX_LENGTH,
        model_input_names=["input_ids", "attention_mask"],
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
    )


def read_texts(path: pathlib.Path) -> list[str]:
    """Roles and contents of all messages of a JSON lines file."""
    with path.open(encoding="utf-8") as lines:
        messages = [message for line in lines for message in json.loads(line)["messages"]]
    return [text for message in messages for text in (message["role"] + "\n", message["content"])]


def main(arguments: Sequence[str]) -> int:
    """The command line: at most one argument, the folder to write."""
    if len(arguments) > 1 or any(each.startswith("-") for each in arguments):
        print("usage: python examples/chats/train_tokenizer.py [OUTDIR]", file=sys.stderr)
        return 2
    tokenizer = train(read_texts(TRAIN_FILE))
    folder = arguments[0] if arguments else FOLDER
    tokenizer.save_pretrained(folder)
    print(f"{folder}: byte-level BPE tokenizer with a chat template, {len(tokenizer)} entries")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
