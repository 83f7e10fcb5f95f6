"""The contract of every layout, on one shared build of each: bytes depend only on the request, records lead back to
their rows, predicted plans match, and damage is found and repaired.

Each layout has its own module for its special promises, such as the tokens of `transformers`.
"""

import collections
import dataclasses
import functools
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare import storage
from pipelines.prepare.audit import reopened_dataset
from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.audit.trace import Tracer
from tests import building
from tests.building import read_manifest, read_shard
from tests.support import infilling, seams
from tfrecord_io.errors import OutputError
from tfrecord_io.manifest import Shard
from tfrecord_io.schema import Schema

Row = Mapping[str, Any]
Runs = Sequence[Sequence[int]]
Unusable = Mapping[int, tuple[Row, str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A layout, and rows for it.

    unusable: the reason for each row, by its number, that cannot be used; these stand among the rows of the example.
    runs: the tokens of a row as `transformers` makes them, in one run or, if overflow windows are cut, in several.
    """

    example: str
    options: Mapping[str, object]
    unusable: Unusable
    runs: Callable[[Any, Row], Runs]
    most_rows: int = 160

    @functools.cached_property
    def rows(self) -> list[Row]:
        path = building.REPOSITORY / "examples" / self.example / "train.jsonl"
        rows: list[Row] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        del rows[self.most_rows :]
        for number, (row, _) in sorted(self.unusable.items()):
            rows.insert(number, row)
        return rows

    @functools.cached_property
    def source(self) -> Path:
        return building.source(building.new_folder() / self.example, train=self.rows)

    @functools.cached_property
    def built(self) -> Path:
        """A finished build in several shards. Shared: copy it before changing it."""
        root = building.new_folder() / "out"
        outcome = self.build(root)
        assert outcome.status == 0, outcome.err
        assert len(read_manifest(root).splits["train"].by_task()) >= 3
        return root

    def arguments(self, root: object, **changes: object) -> list[object]:
        defaults = {"tokenizer": building.tokenizer_for(self.example), "max_error_rate": 0.5}
        return building.options(root, **{**defaults, **self.options, **changes})

    def build(self, root: Path, **changes: object) -> building.Outcome:
        return building.command("build", self.source, "--json", *self.arguments(root, **changes))


def _of(*columns: str, prefix: str = "", **options: Any) -> Callable[[Any, Row], Runs]:
    """Return the tokenizer's output for these columns of a row."""

    def runs(tokenizer: Any, row: Row) -> Runs:
        ids: Runs = tokenizer(*([prefix + row[name]] for name in columns), **options)["input_ids"]
        return ids

    return runs


def _joined(tokenizer: Any, row: Row) -> Runs:
    return [[*tokenizer(row["text"], add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]]


def _infilled(tokenizer: Any, row: Row) -> Runs:
    """Return a document's tokens with fill-in-the-middle, which depend on its number; plain ones if those are many."""
    number = next(at for at, other in enumerate(CASES["pack, infilled"].rows) if other is row)
    ids = infilling.permuted(row["text"], infilling.draws_of([number])[0].tolist(), tokenizer, rate=0.5)
    if len(ids) >= 48:
        ids = tokenizer.encode(row["text"], add_special_tokens=False)
    return [[*ids, tokenizer.eos_token_id]]


def _words(tokenizer: Any, row: Row) -> Runs:
    ids: Runs = tokenizer([row["tokens"]], is_split_into_words=True, truncation=True, max_length=32)["input_ids"]
    return ids


def _conversation(tokenizer: Any, row: Row) -> Runs:
    return [tokenizer.apply_chat_template(row["messages"])["input_ids"]]


def _pair(tokenizer: Any, row: Row) -> Runs:
    answered = [tokenizer.apply_chat_template(row["prompt"] + row[side])["input_ids"] for side in SIDES]
    return [[*answered[0], *answered[1]]]


SIDES = ("chosen", "rejected")
NULL: Unusable = {
    5: ({"text": None, "label": "negative"}, "text_null"),
    70: ({"text": None, "label": "positive"}, "text_null"),
}
TRANSLATIONS = {"layout": "seq2seq", "text_column": "en", "target_column": "de", "input_prefix": "de: "}
QUESTION = {"question": "who ?", "context": "a house", "answers": {"text": ["nowhere"], "answer_start": [2]}}
PAIR: Row = {
    "prompt": [{"role": "user", "content": "Hm?"}],
    "chosen": [{"role": "assistant", "content": "Hm."}],
    "rejected": [{"role": "assistant", "content": "No."}],
    "margin": 1.0,
}


def _of_reviews(runs: Callable[[Any, Row], Runs], options: Mapping[str, object], *, unusable: Unusable = NULL) -> Case:
    return Case(example="reviews", options=options, unusable=unusable, runs=runs)


CHAT = {"layout": "chat", "max_length": 256, "shard_size": "4kB"}
NO_CHAT: Unusable = {3: ({"messages": []}, "messages_empty")}
CASES = {
    "pad": _of_reviews(_of("text", truncation=True, max_length=32), {"label_column": "label", "shard_size": "10kB"}),
    "windows": _of_reviews(
        _of("text", truncation=True, max_length=24, stride=8, return_overflowing_tokens=True),
        {"stride": 8, "max_length": 24, "label_column": "label", "shard_size": "20kB"},
    ),
    "buckets": _of_reviews(
        _of("text", truncation=True, max_length=40),
        {"bucket_lengths": "16,24,40", "max_length": None, "shard_size": "5kB", "label_column": "label"},
    ),
    "concat": _of_reviews(_joined, {"layout": "concat", "shard_size": "4kB"}),
    "concat, segments": _of_reviews(_joined, {"layout": "concat", "segments": True, "shard_size": "6kB"}),
    "pack, infilled": Case(
        example="reviews",
        options={"layout": "pack", "fim_rate": 0.5, "tokenizer": infilling.tokenizer(), "max_length": 48},
        unusable=NULL,
        runs=_infilled,
        most_rows=320,
    ),
    "pack": _of_reviews(_joined, {"layout": "pack", "max_length": 64, "compression": "gzip", "shard_size": "1.5kB"}),
    "pack, long documents dropped": _of_reviews(
        _joined,
        unusable={**NULL, 80: ({"text": "word " * 200, "label": "positive"}, "too_long")},
        options={
            "layout": "pack",
            "max_length": 160,
            "long_documents": "drop",
            "no_shuffle": True,
            "shard_size": "4kB",
        },
    ),
    "pack, long documents truncated": _of_reviews(
        lambda tokenizer, row: [_joined(tokenizer, row)[0][:32]],
        {"layout": "pack", "long_documents": "truncate", "most_documents": 2, "shard_size": "8kB"},
    ),
    "seq2seq": Case(
        example="translations",
        options={**TRANSLATIONS, "target_length": 16, "shard_size": "2kB"},
        unusable={
            2: ({"en": None, "de": "x"}, "text_null"),
            9: ({"en": "x", "de": None}, "target_null"),
            11: ({"en": None, "de": None}, "text_null"),
        },
        runs=_of("en", prefix="de: ", truncation=True, max_length=32),
    ),
    "tokens": Case(
        example="tags",
        options={"layout": "tokens", "shard_size": "2kB"},
        unusable={4: ({"tokens": ["a", "b"], "tags": ["O"]}, "tags_length")},
        runs=_words,
    ),
    "qa": Case(
        example="questions",
        options={"layout": "qa", "text_column": ("question", "context"), "max_length": 40, "stride": 8}
        | {"shard_size": "8kB"},
        unusable={3: (QUESTION, "answer_mismatch")},
        runs=_of(
            "question", "context", truncation="only_second", max_length=40, stride=8, return_overflowing_tokens=True
        ),
    ),
    "chat": Case(example="chats", options={**CHAT, "shard_size": "12kB"}, unusable=NO_CHAT, runs=_conversation),
    "packed chat": Case(example="chats", options={**CHAT, "pack_rows": True}, unusable=NO_CHAT, runs=_conversation),
    "preference": Case(
        example="preferences",
        options={"layout": "preference", "max_length": 96, "keep_column": "margin", "shard_size": "4kB"},
        unusable={
            2: ({**PAIR, "rejected": PAIR["chosen"]}, "answers_equal"),
            6: ({**PAIR, "chosen": None}, "chosen_null"),
            9: ({**PAIR, "rejected": []}, "rejected_empty"),
        },
        runs=_pair,
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def shards(root: Path) -> Sequence[Shard]:
    return read_manifest(root).splits["train"].shards


def tokens_of(columns: Mapping[str, np.ndarray], schema: Schema) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each record its ids, and 1 for each of them that is no padding; of both rows of a pair."""
    if "input_ids" not in columns:
        names = ("input_ids", "attention_mask")
        ids, there = (np.concatenate([columns[f"{side}_{name}"] for side in SIDES], axis=1) for name in names)
        return zip(ids, there == 1, strict=True)
    ids = columns["input_ids"]
    if schema.with_role("segment_ids"):
        there = columns["segment_ids"] > 0
    elif schema.with_role("num_tokens"):
        there = np.arange(ids.shape[1]) < columns["num_tokens"][:, None]
    else:
        there = columns["attention_mask"] == 1
    return zip(ids, there, strict=True)


def is_part(piece: Sequence[int], run: Sequence[int]) -> bool:
    return any(list(run[at : at + len(piece)]) == list(piece) for at in range(len(run) - len(piece) + 1))


def test_rows_that_cannot_be_used_are_counted_and_named_and_all_others_used(case: Case) -> None:
    split = read_manifest(case.built).splits["train"]
    reasons = {row: reason for row, (_, reason) in case.unusable.items()}
    assert split.ledger.rejected == collections.Counter(reasons.values())
    assert split.ledger.rows_in == len(case.rows) == split.ledger.rows_used + len(reasons)
    listed: dict[int, str] = {}
    for task, made in split.by_task().items():
        path = case.built / "rejected" / f"train-{task:05d}.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        listed |= {row["row"]: row["reason"] for row in rows}
        assert all(shard.ledger.balanced for shard in made)
        assert [sum(shard.ledger.rejected.values()) for shard in made] == [len(rows), *(0 for _ in made[1:])]
    assert listed == reasons


def test_every_token_of_a_record_is_of_the_row_that_it_is_traced_to_and_no_row_is_missing(case: Case) -> None:
    facts, tokenizer = read_manifest(case.built), load_tokenizer(str(case.built))
    tracer = Tracer(reopened_dataset.reopen(str(case.built), facts))
    pieces: dict[int, list[list[int]]] = {}
    for index, shard in enumerate(shards(case.built)):
        for record, (ids, there) in enumerate(tokens_of(read_shard(case.built, shard), facts.schema)):
            traced = tracer.trace(split="train", shard=index, record=record).rows
            places = [slice(*row.tokens) if row.tokens else there == 1 for row in traced]
            assert sum(len(ids[place]) for place in places) == there.sum()
            for row, place in zip(traced, places, strict=True):
                assert row.texts.items() <= case.rows[row.row].items()
                assert (row.file, row.file_row) == (str(case.source / "train.jsonl"), row.row)
                pieces.setdefault(row.row, []).append(ids[place].tolist())
    assert pieces.keys() == set(range(len(case.rows))) - case.unusable.keys()
    for number, parts in pieces.items():
        runs = case.runs(tokenizer, case.rows[number])
        assert all(any(is_part(piece, run) for run in runs) for piece in parts)
        assert sorted(itertools.chain(*parts)) == sorted(itertools.chain(*runs))


def test_inspect_decodes_every_record_without_its_padding(case: Case) -> None:
    shown = json.loads(building.command("inspect", case.built, "--rows", 10_000, "--json").out)
    facts, tokenizer = read_manifest(case.built), load_tokenizer(str(case.built))
    records = [
        (shard.name, record, ids[there].tolist())
        for shard in shards(case.built)
        for record, (ids, there) in enumerate(tokens_of(read_shard(case.built, shard), facts.schema))
    ]
    assert [(row["shard"], row["record"], row["num_tokens"]) for row in shown] == [
        (name, record, len(ids)) for name, record, ids in records
    ]
    texts = [[row["text"] + row["features"][side] for side in SIDES if side in row["features"]] for row in shown]
    assert ["".join(pair) or row["text"] for pair, row in zip(texts, shown, strict=True)] == tokenizer.batch_decode(
        [ids for _, _, ids in records], clean_up_tokenization_spaces=False
    )


def test_the_plan_is_what_comes_out(case: Case) -> None:
    arguments = case.arguments("x", workers=None)[2:]
    (planned,) = json.loads(building.command("plan", case.source, *arguments, "--json").out)
    split = read_manifest(case.built).splits["train"]
    assert planned["shards"] == len(split.shards)
    assert planned["num_tokens"] == pytest.approx(split.num_tokens, rel=0.1)
    assert planned["num_bytes"] == pytest.approx(split.num_bytes, rel=0.25 if "compression" in case.options else 0.1)


# Progress depends on tasks and their shards, not on their content.
@pytest.mark.slow
@pytest.mark.parametrize("case", ["buckets", "pack", "pack, infilled", "qa", "preference"], indirect=True)
def test_a_build_that_was_stopped_goes_on_to_the_same_bytes_on_other_threads(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first build writes one file more than the first task has; with buckets, that is part of a task."""
    root = tmp_path / "out"
    first = len(read_manifest(case.built).splits["train"].by_task()[0])
    write, written = storage.write_atomic, itertools.count()

    def stops(path: str, *args: Any, **kwargs: Any) -> None:
        if ".tfrecord" in path and "/index/" not in path and next(written) > first:
            raise OutputError("the disk is gone", remedy="wait")
        write(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        seams.put(patch, write_file=stops)
        assert case.build(root).status == 1
    there = building.shard_bytes(root)
    assert len(there) == first + 1 < len(shards(case.built))
    resumed = case.build(root, workers=2)
    assert resumed.status == 0, resumed.err
    assert building.files(root) == building.files(case.built)
    made = json.loads(resumed.out)
    assert made["shards_made"] + made["shards_kept"] == len(shards(case.built))
    assert made["shards_kept"] == len(there) // first * first


@pytest.mark.slow
@pytest.mark.parametrize("case", ["buckets", "packed chat", "preference"], indirect=True)
def test_worker_processes_change_no_byte(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, small_bytes=0)
    made = case.build(tmp_path / "out", workers=2)
    assert made.status == 0, made.err
    assert building.files(tmp_path / "out") == building.files(case.built)


def test_a_rate_of_0_changes_no_byte(tmp_path: Path) -> None:
    outcome = CASES["concat"].build(tmp_path / "out", fim_rate=0.0)
    assert outcome.status == 0, outcome.err
    assert building.files(tmp_path / "out") == building.files(CASES["concat"].built)


def test_verify_finds_what_is_damaged_and_makes_it_again_byte_for_byte(case: Case, tmp_path: Path) -> None:
    root = Path(shutil.copytree(case.built, tmp_path / "out"))
    assert building.command("verify", root).status == 0
    gone, *_, damaged = shards(root)
    building.flip(root / damaged.name, damaged.num_bytes // 2)
    (root / gone.name).unlink()
    rejected = next((root / "rejected").iterdir())
    rejected.write_bytes(b"")
    shutil.rmtree(root / "index", ignore_errors=True)
    outcome = building.command("verify", root, "--json")
    assert outcome.status == 1
    bad = {finding["file"] for finding in json.loads(outcome.out) if finding["problem"]}
    changed = {gone.name, damaged.name, f"rejected/{rejected.name}"}
    assert {name for name in bad if not name.startswith("index/")} == changed
    repaired = building.command("verify", root, "--repair")
    assert repaired.status == 0, repaired.err
    assert building.files(root) == building.files(case.built)
