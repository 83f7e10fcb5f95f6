"""Compare layout `chat` with `concat` on the same text: the cost of conversations beyond their tokens.

    messages, text      one Parquet file: conversations, and their text from the chat template
    chat, chat packed   read `messages`                  concat     reads `text`
    chat, rewriting     reads `messages`, with a template that leaves out earlier thoughts, like Qwen3's

Contenders take turns to make the same shard in this process, from rows to the finished file, with the tokenizer already
loaded: the repeated work of a worker in a long job. CPU time includes this process and its rendering processes.
"""

import contextlib
import itertools
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

from transformers import AutoTokenizer

from pipelines.cli import commands
from pipelines.prepare.audit import reopened_dataset
from pipelines.prepare.shards import shard_writer
from scripts.benchmarks import corpus, figures, preparing
from scripts.benchmarks.figures import median, number, spread
from tfrecord_io import manifest

_LENGTH = 1024
# Words per conversation, so that nearly all of them fit.
_MOST_WORDS = 600
_MOST_ANSWERS = 4
_SYSTEM = "You are of great help, and you say so when you don't know."
# Without {% generation %} markers, like most models.
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    " + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_REWRITING = (
    "{% set ns = namespace(last=messages | length - 1) %}{% for message in messages[::-1] %}"
    "{% if ns.last == messages | length - 1 and message.role == 'user' %}"
    "{% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set thought, said = '', message.content %}"
    "{% if message.role == 'assistant' and '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if message.role == 'assistant' and loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<|im_start|>assistant\n<think>\n' + thought + '\n</think>\n\n' + said + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + said + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TOKENS = ["<|im_start|>", "<|im_end|>"]
# Options of each contender; the first is the baseline.
_LAYOUTS = {
    "concat": ["--layout", "concat", "--text-column", "text"],
    "chat": ["--layout", "chat"],
    "chat, packed": ["--layout", "chat", "--pack-rows"],
    "chat, rewriting": ["--layout", "chat", "--learn", "all", "--chat-template", "rewriting.jinja"],
}


def report(settings: preparing.Settings) -> str:
    """Compare builds of conversations with a build of their text, and return a Markdown table of the times."""
    workdir = settings.workdir / "chat"
    tokenizer = _tokenizer(workdir, settings.tokenizer("bpe"))
    folder = _conversations(workdir, tokenizer, num_bytes=settings.num_bytes["small"] // 10)
    (workdir / "rewriting.jinja").write_text(_REWRITING, encoding="utf-8")
    command = ["build", str(folder), "--tokenizer", str(tokenizer), "--max-length", str(_LENGTH), "--overwrite"]
    command += ["--shard-size", "1GB", "--workers", "1", "--max-error-rate", "1"]
    contenders = {}
    for name, options in _LAYOUTS.items():
        words = [str(workdir / word) if word.endswith(".jinja") else word for word in options]
        contenders[name] = _contender(workdir / name, [*command, *words])
    for _, _, make in contenders.values():
        make()  # compiles, and starts renderers
    turns = [[_measured(make) for _, _, make in contenders.values()] for _ in range(2 * settings.runs + 1)]
    seconds_TCX = np.array(turns)  # X: wall clock, CPU
    ratios_CX = np.median(seconds_TCX / seconds_TCX[:, :1], axis=0)
    rows = []
    for at, (name, (engine, tokens, _)) in enumerate(contenders.items()):
        walls, cpus = seconds_TCX[:, at].T.tolist()
        speed = number(tokens / median(walls) / 1e6)
        rows.append([name, engine, spread(walls), spread(cpus), speed, *map(number, ratios_CX[at].tolist())])
    headers = ["layout", "engine", "wall, s", "CPU, s", "M tokens/s", "wall / concat", "CPU / concat"]
    return figures.table(headers, rows)


def _contender(output: pathlib.Path, command: list[str]) -> tuple[str, int, Callable[[], object]]:
    """Build a dataset of one shard; return its engine, number of tokens, and a function that makes the shard again."""
    with contextlib.suppress(SystemExit):  # the command exits the process; without a manifest the next lines fail
        commands.main.main([*command, "--output", str(output)], standalone_mode=False)
    facts = manifest.parse((output / manifest.FILE_NAME).read_bytes())
    task, job = reopened_dataset.reopen(str(output), facts).task("train", 0)
    encoder = job.open_encoder()
    tokens = facts.splits["train"].num_tokens
    return encoder.engine, tokens, lambda: shard_writer.write(task, job, encoder)


def _measured(make: Callable[[], object]) -> tuple[float, float]:
    """Call `make`; return its seconds of wall clock, and the CPU seconds of this process and its children."""
    wall, cpu = time.perf_counter(), _cpu_seconds()
    make()
    return time.perf_counter() - wall, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    return time.process_time() + sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())


def _tokenizer(workdir: pathlib.Path, trained: pathlib.Path) -> pathlib.Path:
    """Add a chat template and its tokens to the tokenizer `trained`, save it, and return the folder."""
    tokenizer: Any = AutoTokenizer.from_pretrained(trained)
    tokenizer.add_special_tokens({"additional_special_tokens": _TOKENS}, replace_extra_special_tokens=False)
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(workdir / "chat-bpe")
    return workdir / "chat-bpe"


def _conversations(workdir: pathlib.Path, tokenizer: pathlib.Path, *, num_bytes: int) -> pathlib.Path:
    """Write conversations of `num_bytes` of text, and their rendered text, as a Parquet file; return its folder."""
    folder = workdir / "conversations"
    folder.mkdir(parents=True, exist_ok=True)
    loaded: Any = AutoTokenizer.from_pretrained(tokenizer)
    messages = list(_made(num_bytes=num_bytes))
    texts = [loaded.apply_chat_template(conversation, tokenize=False) for conversation in messages]
    pq.write_table(pa.table({"messages": messages, "text": texts}), folder / "train.parquet", row_group_size=1000)
    return folder


def _made(*, num_bytes: int) -> Iterator[list[dict[str, str]]]:
    """Yield conversations of questions and answers, one per document of the corpus; some have a system prompt."""
    rng = np.random.default_rng(0)
    for table in corpus.documents(num_bytes=num_bytes):
        for text in table["text"].to_pylist():
            words = text.split(" ")[:_MOST_WORDS]
            turns = 2 * int(rng.integers(1, _MOST_ANSWERS + 1))
            edges = [0, *sorted(rng.integers(0, len(words) + 1, turns - 1).tolist()), len(words)]
            contents = [" ".join(words[start:stop]) or "?" for start, stop in itertools.pairwise(edges)]
            roles = itertools.cycle(("user", "assistant"))
            made = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
            yield [{"role": "system", "content": _SYSTEM}, *made] if rng.random() < 0.3 else made
