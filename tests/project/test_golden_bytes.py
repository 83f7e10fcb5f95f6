"""The bytes of small builds, over all layouts, as they were when `fingerprint.ALGORITHM` got its number.

A digest that changes means that users' datasets would come out otherwise, without their fingerprints saying so: then
the algorithm needs a new number, and `golden_bytes.json` an entry with it. No tokenizer is trained here, and gzip is
unpacked first, so that no other library decides the digests.
"""

import gzip
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.dataset.fingerprint import ALGORITHM
from tests import building
from tests.support import texts
from tests.support.tokenizers_zoo import Zoo

GOLDEN = Path(__file__).with_name("golden_bytes.json")
ROWS = 150
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "[MASK] {% generation %}{{ message.content }} [SEP]{% endgeneration %}\n"
    "{% else %}[CLS] {{ message.content }} [SEP]\n{% endif %}{% endfor %}"
)
# By name: the options of a build. `kind` is the tokenizer's.
CASES: dict[str, dict[str, Any]] = {
    "pad": {"label_column": "label", "keep_column": ("number", "vector")},
    "pad pairs": {"text_column": ("text", "context"), "padding_side": "left", "truncation": "only_second"},
    "pad in order": {"no_shuffle": True, "limit": 70},
    "pad seed": {"seed": 7, "split": ("train[10%:90%]",), "hold_out": "test=20%"},
    "pad windows": {"stride": 4, "max_length": 16},
    "pad buckets": {"bucket_lengths": "8,16,64", "max_length": 64},
    "pad gzip": {"compression": "gzip", "shard_size": "1MB"},
    "pad parquet": {"source": "rows.parquet", "shard_size": "1MB"},
    "pad small files": {"source": "files", "shard_size": "4kB"},
    "concat": {"layout": "concat"},
    "concat bos": {"layout": "concat", "kind": "unigram_left", "special_tokens": "bos-eos", "remainder": "drop"},
    "pack": {"layout": "pack", "max_length": 64},
    "chat": {"layout": "chat", "kind": "chat", "max_length": 64},
    "chat packed": {"layout": "chat", "kind": "chat", "max_length": 96, "pack_rows": True},
    "preference": {
        "layout": "preference",
        "kind": "unigram",
        "prompt_column": "question",
        "chosen_column": "text",
        "rejected_column": "context",
    },
    "seq2seq": {"layout": "seq2seq", "kind": "unigram", "target_column": "context", "input_prefix": "tell: "},
    "tokens": {"layout": "tokens"},
    "qa": {"layout": "qa", "text_column": ("question", "context"), "max_length": 48, "stride": 8},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in JSON lines, in several such files, and in row groups of a Parquet file."""
    folder = tmp_path_factory.mktemp("golden")
    table = pa.Table.from_pylist(_rows())
    building.source(folder / "rows", train=table.to_pylist())
    building.source(folder / "files", **{f"train-{at}": table.slice(40 * at, 40).to_pylist() for at in range(4)})
    pq.write_table(table, folder / "rows.parquet", row_group_size=40)
    return folder


def _rows() -> list[dict[str, Any]]:
    made = texts.sentences(2 * ROWS, seed=30)
    rows = []
    for number, (text, context) in enumerate(zip(made[:ROWS], made[ROWS:], strict=True)):
        words, draw = text.split() or ["nothing"], random.Random(number)
        begin = draw.randrange(len(context) or 1)
        answer = context[begin : begin + 1 + draw.randrange(12)]
        rows.append(
            {
                "text": text,
                "context": context,
                "question": f"What about {words[-1]}?",
                "answers": {"text": [answer], "answer_start": [begin]}
                if number % 5
                else {"text": [], "answer_start": []},
                "label": ["good", "bad", "odd"][number % 3],
                "number": number,
                "vector": [number / 4, -1.5],
                "tokens": words,
                "tags": [["O", "B", "I"][len(word) % 3] for word in words],
                "messages": [
                    {"role": role, "content": content}
                    for role, content in [("user", " ".join(words[:9])), ("assistant", words[-1])] * (1 + number % 3)
                ],
            }
        )
    return rows


@pytest.fixture(scope="module")
def tokenizers(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    chat = tmp_path_factory.mktemp("tokenizers") / "chat"
    shutil.copytree(zoo.path("wordpiece_cased"), chat)
    (chat / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return {"chat": chat, **{kind: zoo.path(kind) for kind in ("wordpiece_cased", "unigram", "unigram_left")}}


def _digest(output: Path) -> str:
    """Of the names and contents of all shards and their indexes."""
    files = {name: gzip.decompress(content) for name, content in building.shard_bytes(output).items() if ".gz" in name}
    files = {**building.shard_bytes(output), **files}
    files |= {path.name: path.read_bytes() for path in (output / "index").glob("*")}
    assert files
    listed = [(name, hashlib.sha256(content).hexdigest()) for name, content in sorted(files.items())]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:32]


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_of_this_algorithm(tmp_path: Path, data: Path, tokenizers: dict[str, Path], case: str) -> None:
    options = {"shard_size": "12kB", "max_error_rate": 0.9, "kind": "wordpiece_cased", "source": "rows", **CASES[case]}
    tokenizer, source = tokenizers[options.pop("kind")], data / options.pop("source")
    arguments = building.options(tmp_path / "out", tokenizer=tokenizer, name="golden", **options)
    outcome = building.command("build", source, *arguments)
    assert outcome.status == 0, outcome.err
    made, golden = _digest(tmp_path / "out"), json.loads(GOLDEN.read_text(encoding="utf-8"))
    known = golden.get(str(ALGORITHM), {}).get(case)
    line = f'"{case}": "{made}"'
    assert known is not None, f"{GOLDEN.name} has no digest of it for ALGORITHM {ALGORITHM}; add {line}"
    assert made == known, (
        f"the bytes of {case!r} have changed. If they are meant to, bump ALGORITHM in "
        f"pipelines/prepare/dataset/fingerprint.py from {ALGORITHM} to {ALGORITHM + 1}, and record the new digests of "
        f"all cases in {GOLDEN.name}, below those of {ALGORITHM}; this one is {line}"
    )


def test_every_algorithm_has_digests_of_its_own() -> None:
    """A released number keeps its digests; only different bytes need a new number."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert list(golden) == [str(number) for number in range(1, ALGORITHM + 1)]
    assert list(golden[str(ALGORITHM)]) == list(CASES)
    assert len({json.dumps(digests) for digests in golden.values()}) == ALGORITHM
