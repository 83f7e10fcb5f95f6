"""Layout `chat` against `concat` on the same text: what conversations cost beyond their tokens.

python -m scripts.benchmarks.chat [--megabytes N] [--rounds N] [--workdir DIR]

    messages, text      one Parquet file: conversations, and what the chat template makes of each of them
    chat, chat packed   read `messages`                  concat     reads `text`

Each of the three makes the same shard again and again in this process, in turns, from rows to the finished file and
with the tokenizer loaded before: what a worker of a long job does all the time. Processor time is that of this process
and of those that render for it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from pipelines.prepare.options.config import EngineName
from scripts import arguments
from scripts.benchmarks import corpus, figures, machine, preparing, tokenizer_training
from scripts.benchmarks.figures import Figure, median, number

__all__ = ["compare", "report"]

_LENGTH = 1024
# Of one conversation, so that nearly all of them fit: `concat` cuts nothing either.
_MOST_WORDS = 600
# Rendering takes as long as tokenizing where turns are short, on other cores where there are any.
_WALL_BAR, _CPU_BAR = 2.5, 1.5
_TRAINING_BYTES, _UNIGRAM_BYTES = 5_000_000, 1_000_000
_MOST_ANSWERS = 4
_SYSTEM = "You are of great help, and you say so when you don't know."
# Without {% generation %} markers, as most models have it.
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    " + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_TOKENS = ["<|im_start|>", "<|im_end|>"]
# What is compared with the first of them, and the options that make it.
_LAYOUTS = {
    "concat": ["--layout", "concat", "--text-column", "text"],
    "chat": ["--layout", "chat"],
    "chat, packed": ["--layout", "chat", "--pack-rows"],
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Race:
    """A tokenizer, and which engine is asked for: `auto` takes the fastest, `hf` is the reference."""

    name: str
    kind: str
    engine: EngineName


_RACES = (
    _Race(name="byte-level BPE, fastokens", kind="bpe", engine="auto"),
    _Race(name="byte-level BPE, hf", kind="bpe", engine="hf"),
    _Race(name="Unigram, hf", kind="unigram", engine="auto"),
)
# Those that the bar is for: with the others the tokenizer itself normalises, and has to say where its tokens are.
_BARRED = _RACES[:2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Contender:
    """A finished dataset of one shard, whose task is done again by `run`; `engine` is what tokenizes it."""

    engine: str
    tokens: int
    run: Any

    def measure(self) -> tuple[float, float]:
        """Seconds of wall clock, and of all cores together."""
        wall, cpu = time.perf_counter(), _cpu_seconds()
        self.run()
        return time.perf_counter() - wall, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """Of this process and its children."""
    ticks = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks += (int(fields[1]) == os.getpid()) * (int(fields[11]) + int(fields[12]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def report(settings: preparing.Settings) -> tuple[str, list[Figure]]:
    """The table of the benchmark's section, and its figures, for byte-level BPE, which most chat models have."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    workdir = settings.workdir / "chat"
    return compare(workdir, _RACES[:1], num_bytes=settings.small_bytes // 10, rounds=2 * settings.small_runs + 1)


def compare(workdir: pathlib.Path, races: Sequence[_Race], *, num_bytes: int, rounds: int) -> tuple[str, list[Figure]]:
    """The table, and the figures with a bar."""
    rows, found = [], []
    for race in races:
        tokenizer = _tokenizer(workdir, race.kind)
        folder = _conversations(workdir, tokenizer, kind=race.kind, num_bytes=num_bytes)
        contenders = {
            name: _contender(workdir / f"{race.kind}-{race.engine}-{number(index)}", folder, tokenizer, race, options)
            for index, (name, options) in enumerate(_LAYOUTS.items())
        }
        for contender in contenders.values():
            contender.measure()  # compiles, and starts renderers
        seconds = {name: np.array(turns) for name, turns in _in_turns(contenders, rounds=rounds).items()}
        for name, measured in seconds.items():
            wall, cpu = (median(ratio) for ratio in (measured / seconds["concat"]).T.tolist())
            rows.append(
                [race.name, name, contenders[name].engine, *_cells(measured, contenders[name].tokens, wall, cpu)]
            )
            if name != "concat" and race in _BARRED:
                found += [
                    _figure(f"{race.name}: {name}, wall", wall, _WALL_BAR),
                    _figure(f"{race.name}: {name}, CPU", cpu, _CPU_BAR),
                ]
    headers = ["tokenizer", "layout", "engine", "wall, s", "CPU, s", "M tokens/s", "wall / concat", "CPU / concat"]
    return figures.table(headers, rows), found


def _figure(name: str, ratio: float, bar: float) -> Figure:
    return Figure(name=f"{name} / concat", measured=ratio, at_most=bar, unit="x")


def _cells(measured: np.ndarray, tokens: int, wall: float, cpu: float) -> list[str]:
    walls, cpus = measured.T.tolist()
    return [
        figures.spread(walls),
        figures.spread(cpus),
        number(tokens / median(walls) / 1e6),
        number(wall),
        number(cpu),
    ]


def _in_turns(contenders: dict[str, _Contender], *, rounds: int) -> dict[str, list[tuple[float, float]]]:
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            seconds[name].append(contender.measure())
    return seconds


def _contender(
    output: pathlib.Path, folder: pathlib.Path, tokenizer: pathlib.Path, race: _Race, options: list[str]
) -> _Contender:
    from pipelines.cli import commands
    from pipelines.prepare.audit import reopened_dataset
    from pipelines.prepare.crosscheck import comparing
    from pipelines.prepare.shards import shard_writer
    from tfrecord_io import manifest

    given = ["--output", str(output), "--tokenizer", str(tokenizer), "--max-length", str(_LENGTH), "--overwrite"]
    arguments_given = [
        *given,
        "--engine",
        race.engine,
        "--shard-size",
        "1GB",
        "--workers",
        "1",
        "--max-error-rate",
        "1",
        *options,
    ]
    commands.main.main(["build", str(folder), *arguments_given], standalone_mode=False)
    facts = manifest.parse((output / manifest.FILE_NAME).read_bytes())
    reopened = reopened_dataset.reopen(str(output), facts)
    job = dataclasses.replace(reopened.job, engine=race.engine)
    encoder, task = job.open_encoder(), reopened.task("train", 0)
    return _Contender(
        engine=comparing.engine_of(encoder),
        tokens=facts.splits["train"].num_tokens,
        run=lambda: shard_writer.write(task, job, encoder),
    )


def _unigram() -> Tokenizer:
    """T5's kind: white space is normalised before anything else happens."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=8_000, special_tokens=["</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    texts = (text for table in corpus.documents(num_bytes=_UNIGRAM_BYTES) for text in table["text"].to_pylist())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _tokenizer(workdir: pathlib.Path, kind: str) -> pathlib.Path:
    """The benchmark's tokenizer of that kind with a chat template and the tokens that it writes."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = workdir / f"chat-{kind}"
    if kind == "unigram":
        tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=_unigram(), eos_token="</s>", unk_token="<unk>")
    else:
        trained = tokenizer_training.trained(workdir, kind, sample_bytes=_TRAINING_BYTES)
        tokenizer = AutoTokenizer.from_pretrained(trained)
    tokenizer.add_special_tokens({"additional_special_tokens": _TOKENS}, replace_extra_special_tokens=False)
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def _conversations(workdir: pathlib.Path, tokenizer: pathlib.Path, *, kind: str, num_bytes: int) -> pathlib.Path:
    """A folder with the conversations, and the text that the template makes of each."""
    from transformers import AutoTokenizer

    folder = workdir / f"conversations-{kind}"
    folder.mkdir(parents=True, exist_ok=True)
    loaded: Any = AutoTokenizer.from_pretrained(tokenizer)
    messages = list(_made(num_bytes=num_bytes))
    texts = [loaded.apply_chat_template(each, tokenize=False) for each in messages]
    pq.write_table(pa.table({"messages": messages, "text": texts}), folder / "train.parquet", row_group_size=1000)
    return folder


def _made(*, num_bytes: int) -> Iterator[list[dict[str, str]]]:
    """The corpus, cut into conversations, and these into questions and answers; some have a system prompt."""
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


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=arguments.positive, default=10, help="of text, default %(default)s")
    parser.add_argument("--rounds", type=arguments.positive, default=7, help="default %(default)s")
    parser.add_argument("--workdir", type=pathlib.Path, metavar="DIR", help="kept afterwards; default: a temporary one")
    parser.add_argument("--only", nargs="+", choices=[race.name for race in _RACES], help="default: all of them")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(f"{machine.line()}\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        workdir = options.workdir or pathlib.Path(temporary)
        races = [race for race in _RACES if race.name in (options.only or [race.name])]
        text, found = compare(workdir, races, num_bytes=options.megabytes * 1_000_000, rounds=options.rounds)
    print(f"{text}\n\n{figures.bars_table(found)}")


if __name__ == "__main__":
    main()
