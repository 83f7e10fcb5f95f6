"""Compare layout `chat` with `concat` on the same text: the cost of conversations beyond their tokens.

    messages, text      one Parquet file: conversations, and their text from the chat template
    chat, chat packed   read `messages`                  concat     reads `text`
    chat, rewriting     reads `messages`, with a template that leaves out earlier thoughts, like Qwen3's

Contenders take turns to make the same shard in this process, from rows to the finished file, with the tokenizer already
loaded: the repeated work of a worker in a long job. CPU time includes this process and its rendering processes.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scripts.benchmarks import corpus, figures, preparing, tokenizer_training
from scripts.benchmarks.figures import median, number

_LENGTH = 1024
# Words per conversation, so that nearly all of them fit: `concat` cuts nothing either.
_MOST_WORDS = 600
_TRAINING_BYTES = 5_000_000
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Contender:
    """Finished dataset of one shard; `run` makes the shard again, and `engine` tokenizes it."""

    engine: str
    tokens: int
    run: Any

    def measure(self) -> tuple[float, float]:
        """Return seconds of wall clock, and of all cores together."""
        wall, cpu = time.perf_counter(), _cpu_seconds()
        self.run()
        return time.perf_counter() - wall, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children."""
    ticks = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks += (int(fields[1]) == os.getpid()) * (int(fields[11]) + int(fields[12]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def report(settings: preparing.Settings) -> str:
    """Return the table of this section, for byte-level BPE, which most chat models use."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    workdir = settings.workdir / "chat"
    tokenizer = _tokenizer(workdir)
    folder = _conversations(workdir, tokenizer, num_bytes=settings.small_bytes // 10)
    (workdir / "rewriting.jinja").write_text(_REWRITING, encoding="utf-8")
    contenders = {
        name: _contender(
            workdir / f"out-{index}",
            folder,
            tokenizer,
            [str(workdir / each) if each.endswith(".jinja") else each for each in options],
        )
        for index, (name, options) in enumerate(_LAYOUTS.items())
    }
    for contender in contenders.values():
        contender.measure()  # compiles, and starts renderers
    turns = [{name: each.measure() for name, each in contenders.items()} for _ in range(2 * settings.small_runs + 1)]
    seconds = {name: np.array([turn[name] for turn in turns]) for name in contenders}
    rows = []
    for name, measured in seconds.items():
        wall, cpu = (median(ratio) for ratio in (measured / seconds["concat"]).T.tolist())
        rows.append([name, contenders[name].engine, *_cells(measured, contenders[name].tokens, wall, cpu)])
    headers = ["layout", "engine", "wall, s", "CPU, s", "M tokens/s", "wall / concat", "CPU / concat"]
    return figures.table(headers, rows)


def _cells(measured: np.ndarray, tokens: int, wall: float, cpu: float) -> list[str]:
    walls, cpus = measured.T.tolist()
    return [
        figures.spread(walls),
        figures.spread(cpus),
        number(tokens / median(walls) / 1e6),
        number(wall),
        number(cpu),
    ]


def _contender(output: pathlib.Path, folder: pathlib.Path, tokenizer: pathlib.Path, options: list[str]) -> _Contender:
    from pipelines.cli import commands
    from pipelines.prepare.audit import reopened_dataset
    from pipelines.prepare.shards import shard_writer
    from tfrecord_io import manifest

    given = ["--output", str(output), "--tokenizer", str(tokenizer), "--max-length", str(_LENGTH), "--overwrite"]
    given += ["--shard-size", "1GB", "--workers", "1", "--max-error-rate", "1", *options]
    with contextlib.suppress(SystemExit):  # the command exits the process; without a manifest the next lines fail
        commands.main.main(["build", str(folder), *given], standalone_mode=False)
    facts = manifest.parse((output / manifest.FILE_NAME).read_bytes())
    task, job = reopened_dataset.reopen(str(output), facts).task("train", 0)
    encoder = job.open_encoder()
    return _Contender(
        engine=encoder.engine,
        tokens=facts.splits["train"].num_tokens,
        run=lambda: shard_writer.write(task, job, encoder),
    )


def _tokenizer(workdir: pathlib.Path) -> pathlib.Path:
    """Save the benchmark's byte-level BPE with a chat template and its tokens; return the folder."""
    from transformers import AutoTokenizer

    folder = workdir / "chat-bpe"
    tokenizer: Any = AutoTokenizer.from_pretrained(
        tokenizer_training.trained(workdir, "bpe", sample_bytes=_TRAINING_BYTES)
    )
    tokenizer.add_special_tokens({"additional_special_tokens": _TOKENS}, replace_extra_special_tokens=False)
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def _conversations(workdir: pathlib.Path, tokenizer: pathlib.Path, *, num_bytes: int) -> pathlib.Path:
    """Write a file with the conversations and their text from the template; return the folder."""
    from transformers import AutoTokenizer

    folder = workdir / "conversations"
    folder.mkdir(parents=True, exist_ok=True)
    loaded: Any = AutoTokenizer.from_pretrained(tokenizer)
    messages = list(_made(num_bytes=num_bytes))
    texts = [loaded.apply_chat_template(each, tokenize=False) for each in messages]
    pq.write_table(pa.table({"messages": messages, "text": texts}), folder / "train.parquet", row_group_size=1000)
    return folder


def _made(*, num_bytes: int) -> Iterator[list[dict[str, str]]]:
    """Yield conversations of questions and answers, cut from the corpus; some have a system prompt."""
    rng = np.random.default_rng(0)
    for table in corpus.documents(num_bytes=num_bytes):
        for text in table["text"].to_pylist():
            words = text.split(" ")
            for first in range(0, len(words), _MOST_WORDS):
                yield _conversation(words[first : first + _MOST_WORDS], rng)


def _conversation(words: list[str], rng: np.random.Generator) -> list[dict[str, str]]:
    turns = 2 * int(rng.integers(1, _MOST_ANSWERS + 1))
    edges = [0, *sorted(rng.integers(0, len(words) + 1, turns - 1).tolist()), len(words)]
    contents = [" ".join(words[start:stop]) or "?" for start, stop in itertools.pairwise(edges)]
    roles = ["user", "assistant"] * (turns // 2)
    made = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    return [{"role": "system", "content": _SYSTEM}, *made] if rng.random() < 0.3 else made
