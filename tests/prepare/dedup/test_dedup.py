"""Duplicates and overlap: planted ones are found, and no other; digests do not depend on workers; repair and resume."""

import json
import random
import re
import shutil
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.dedup import deciding, text_hashes
from pipelines.prepare.sources.rows import unused_rows
from tests import building
from tests.building import Outcome
from tests.support import seams

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
FILES = {"train-a": slice(0, 300), "train-b": slice(300, 600), "test": slice(600, 700)}


DRAW = random.Random(1)
TEXTS = [" ".join(DRAW.choice(WORDS) for _ in range(16)) for _ in range(700)]
# Copies of the first ten rows: as they are, and differing in case, white space and compatibility characters.
COPIES = [
    *TEXTS[:4],
    *(text.upper() for text in TEXTS[4:6]),
    *(f"  {text}\n".replace(" ", " \t") for text in TEXTS[6:8]),
    *(text.replace("a", "ａ") for text in TEXTS[8:10]),
]


def write(folder: Path, **more: list[str]) -> Path:
    """The texts in two files of train and one of test, with `more` at the ends of files."""
    folder.mkdir()
    for name, rows in FILES.items():
        table = pa.table({"text": [*TEXTS[rows], *more.get(name.replace("-", "_"), [])]})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=50)
    return folder


def build(dataset: Path, output: Path, **options: object) -> Outcome:
    outcome = building.command("build", dataset, *building.options(output, **{"shard_size": "40kB", **options}))
    assert outcome.status == 0, outcome.err
    return outcome


def filtered(root: Path, split: str = "train") -> Mapping[str, int]:
    return building.read_manifest(root).splits[split].ledger.filtered


def decided(root: Path) -> list[tuple[object, ...]]:
    """The number of each row of train that left, and the split and number of the row that stays."""
    (path,) = root.glob(".prep/*/decided/train.parquet")
    return [(row["row"], row["of_split"], row["of_row"]) for row in pq.read_table(path).to_pylist()]


def test_all_copies_leave_and_no_other_row(tmp_path: Path) -> None:
    dataset = write(tmp_path / "in", train_b=COPIES, test=[TEXTS[20], TEXTS[600]])
    assert "train: filtered duplicate 10 (1.6%)" in build(dataset, tmp_path / "out", dedup="exact").err
    assert filtered(tmp_path / "out") == {"duplicate": 10}
    assert filtered(tmp_path / "out", "test") == {"duplicate": 1}
    assert decided(tmp_path / "out") == [(600 + at, "train", at) for at in range(10)]


def test_verbatim_takes_only_the_same_bytes(tmp_path: Path) -> None:
    build(write(tmp_path / "in", train_b=COPIES), tmp_path / "out", dedup="verbatim")
    assert filtered(tmp_path / "out") == {"duplicate": 4}


def test_rows_of_other_splits_leave_train_and_stay_themselves(tmp_path: Path) -> None:
    dataset = write(tmp_path / "in", train_b=[TEXTS[650], TEXTS[3]], test=[TEXTS[7].upper()])
    build(dataset, tmp_path / "out", dedup="exact", dedup_across_splits=True)
    assert filtered(tmp_path / "out", "test") == {}
    assert decided(tmp_path / "out") == [(7, "test", 100), (600, "test", 50), (601, "train", 3)]


def test_both_columns_of_a_pair_count_together(tmp_path: Path) -> None:
    rows = {"a": ["x y", "x y", "x", "X  Y"], "b": ["z", "w", "y z", "z"]}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    build(tmp_path / "train.parquet", tmp_path / "out", dedup="exact", text_column=("a", "b"))
    assert [row for row, *_ in decided(tmp_path / "out")] == [3]


@pytest.mark.parametrize(("labels", "note"), [(("a", "b"), True), (("a", "a"), False), ((1, 2), True)])
def test_duplicates_with_another_label_are_said(tmp_path: Path, labels: tuple[object, object], note: bool) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(("good film", "Good  Film"), labels, strict=True)]
    source = building.source(tmp_path / "in", train=[*rows, {"text": "dull", "label": labels[0]}])
    outcome = build(source, tmp_path / "out", dedup="exact", label_column="label")
    assert ("left out 1 duplicate with another label than the kept row" in outcome.err) == note
    assert len(building.read_rows(tmp_path / "out", "train")["label"]) == 2


def test_the_first_usable_row_stays(tmp_path: Path) -> None:
    """A filtered or unusable row removes no duplicates of it."""
    rows = {"text": ["same words here", "same words here", None, None], "label": [None, 1, 1, 1]}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    build(tmp_path / "train.parquet", tmp_path / "out", dedup="exact", label_column="label", max_error_rate=1)
    assert decided(tmp_path / "out") == []


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source with copies and contaminated rows, and a build of it on one worker."""
    home = tmp_path_factory.mktemp("compared")
    write(home / "in", train_b=COPIES)
    questions = [f"Which? {' '.join(TEXTS[at].split()[2:11]).upper()}!" for at in (40, 41)]
    rows = "".join(json.dumps({"question": question}) + "\n" for question in [*questions, "too short"])
    (home / "exam.jsonl").write_text(rows)
    build(home / "in", home / "out", **options_of(home))
    return home / "in", home / "out"


def options_of(home: Path) -> dict[str, object]:
    return {"dedup": "exact", "decontaminate": f"{home / 'exam.jsonl'}:question", "decontaminate_words": 8}


def test_rows_with_words_of_an_evaluation_set_leave_by_its_name(compared: tuple[Path, Path]) -> None:
    assert filtered(compared[1]) == {"contaminated:exam": 2, "duplicate": 10}
    assert "contaminated:exam 2 (0.3%)" in building.command("inspect", compared[1]).out


CHINESE = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁"
THAI = "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิต่างมีเหตุผลและมโนธรรม"


def test_texts_without_spaces_leave_as_others_do_and_short_ones_are_said(tmp_path: Path) -> None:
    english = " ".join(f"word{at}" for at in range(13))
    rows = [f"前言：{CHINESE}。后记", f"ก{THAI}ข", f"so {english}!", "clean", CHINESE[:12], THAI[:30]]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    for name, texts in (("a/exam.v1", [CHINESE, "short"]), ("b/exam.v1", [THAI]), ("*", [english]), ("few", ["a b"])):
        path = tmp_path / "sets" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    names = [tmp_path / "sets" / name for name in ("a/exam.v1.jsonl", "b/exam.v1.jsonl", "*.jsonl", "few.jsonl")]
    output = build(tmp_path / "train.jsonl", tmp_path / "out", decontaminate=tuple(map(str, names))).err
    assert filtered(tmp_path / "out") == {"contaminated:exam": 1, "contaminated:exam-2": 1, "contaminated:sets": 1}
    assert "a/exam.v1.jsonl: texts of fewer than 13 words (1 of 2 texts) are not compared with any row; give" in output
    assert "few.jsonl: texts of fewer than 13 words (1 of 1 text) are not compared with any row; give" in output


@pytest.mark.slow
def test_workers_change_no_byte_and_a_second_run_makes_nothing(compared: tuple[Path, Path], tmp_path: Path) -> None:
    dataset, root = compared
    build(dataset, tmp_path / "out", **options_of(root.parent), workers=2)
    assert building.files(tmp_path / "out") == building.files(root)
    again = json.loads(build(dataset, tmp_path / "out", **options_of(root.parent), json=True).out)
    assert again["shards_made"] == 0


def test_a_build_that_was_stopped_goes_on_with_what_was_decided(
    compared: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, root = compared
    shutil.copytree(root, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    next((tmp_path / "out").glob("*train*.tfrecord")).unlink()
    monkeypatch.setattr(deciding, "divide", None)
    build(dataset, tmp_path / "out", **options_of(root.parent))
    assert building.files(tmp_path / "out") == building.files(root)


def test_a_damaged_shard_is_repaired_without_the_rows_that_left(compared: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(compared[1], tmp_path / "out")
    shard = next((tmp_path / "out").glob("*train*.tfrecord"))
    before = shard.read_bytes()
    shard.write_bytes(before[:100] + b"\0" + before[101:])
    outcome = building.command("verify", tmp_path / "out", "--repair")
    assert outcome.status == 0, outcome.err
    assert shard.read_bytes() == before


def test_what_is_decided_elsewhere_is_refused(tmp_path: Path) -> None:
    arguments = building.options(tmp_path / "out", dedup="exact", dedup_across_splits=True, split="test")
    assert "there is no split train" in building.command("build", write(tmp_path / "in"), *arguments).error[0]


def test_keys_are_equal_where_a_plain_form_is() -> None:
    draw = random.Random(5)
    texts = ["".join(draw.choices("aA ａ\t\n b\u00a0\u3000\u0301’äÄ中", k=draw.randint(0, 5))) for _ in range(3_000)]
    keys = text_hashes.row_keys([pa.array(texts)], verbatim=False)
    plain = [" ".join(unicodedata.normalize("NFKC", text).lower().split()) for text in texts]
    pairs = {(key.tobytes(), text) for key, text in zip(keys, plain, strict=True)}
    assert len(pairs) == len(set(plain)) == len({key for key, _ in pairs})


@pytest.mark.slow
def test_runs_of_words_are_those_of_a_plain_form() -> None:
    def runs(text: str, n: int) -> set[tuple[str, ...]]:
        stripped = ["".join(c for c in word if unicodedata.category(c)[0] not in "PS") for word in text.lower().split()]
        words = [word for word in stripped if word]
        return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}

    draw = random.Random(6)
    marks = ["", ",", "!", " -", " \u00a9"]
    texts = [" ".join(draw.choice("abcdef") + draw.choice(marks) for _ in range(at % 41)) for at in range(5_000)]
    evaluation = ["A b c d, e", "f e d c b a - a!", "a b"]
    hashes, _ = text_hashes.run_hashes(pa.array(evaluation), 5)
    every = text_hashes.EvaluationRuns.joined({"e": [hashes]}, num_words=5)
    wanted = set.union(*(runs(text, 5) for text in evaluation))
    expected = [bool(runs(text, 5) & wanted) for text in texts]
    assert 10 < sum(expected) < len(texts)
    assert (every.find(pa.array(texts)) >= 0).tolist() == expected
    assert np.array_equal(text_hashes.EvaluationRuns.load(every.dump()).hashes, every.hashes)


def test_runs_count_by_characters_where_a_script_has_no_spaces() -> None:
    def runs(text: str, least: int) -> set[tuple[str, ...]]:
        units = re.findall("[一-龥ぁ-ん]|[ก-ฮ]|[a-z]+", text)
        sizes = [1 if "ก" <= unit <= "ฮ" else 4 for unit in units]
        windows: set[tuple[str, ...]] = set()
        for at in range(len(units)):
            ends = [end for end in range(at + 1, len(units) + 1) if sum(sizes[at:end]) >= 4 * least]
            windows.update(tuple(units[at:end]) for end in ends[:1])
        return windows

    draw = random.Random(7)
    texts = ["".join(draw.choices("天地あกขค", k=draw.randint(0, 30))) for _ in range(1_500)]
    texts += [" ".join(draw.choices(["ab", "天地", "กข", "c"], k=draw.randint(0, 9))) for _ in range(1_500)]
    evaluation = ["天地あ天、地あ天กขคกขค", "กขคกขคกข กขคก", "ab 天地 กขกข c ab", "天"]
    hashes, _ = text_hashes.run_hashes(pa.array(evaluation), 3)
    every = text_hashes.EvaluationRuns.joined({"e": [hashes]}, num_words=3)
    wanted = set.union(*(runs(text, 3) for text in evaluation))
    expected = [bool(runs(text, 3) & wanted) for text in texts]
    assert 10 < sum(expected) < len(texts)
    assert (every.find(pa.array(texts)) >= 0).tolist() == expected


@pytest.mark.slow
def test_ranges_of_keys_do_not_change_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, dedup_range_rows=100, dedup_task_rows=90)
    build(write(tmp_path / "in", train_b=COPIES), tmp_path / "out", dedup="exact")
    assert decided(tmp_path / "out") == [(600 + at, "train", at) for at in range(10)]


@pytest.mark.slow
def test_which_splits_are_compared_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    """Otherwise duplicates of test rows would stay in train if test was requested later."""
    dataset = write(tmp_path / "in", train_b=[TEXTS[650]])
    options = {"dedup": "exact", "dedup_across_splits": True}
    build(dataset, tmp_path / "out", **options, split="train")
    assert filtered(tmp_path / "out") == {}
    both = {"shard_size": "40kB", **options, "split": ("train", "test")}
    outcome = building.command("build", dataset, *building.options(tmp_path / "out", **both))
    assert "compared.test: was null" in outcome.error[0]
    build(dataset, tmp_path / "both", **both)
    assert filtered(tmp_path / "both") == {"duplicate": 1}


@pytest.mark.slow
def test_a_decision_about_other_rows_is_not_taken_again(tmp_path: Path) -> None:
    dataset = write(tmp_path / "in", train_b=COPIES)
    build(dataset, tmp_path / "out", dedup="exact", split="train", limit=300)
    # As if it had been killed between the decision and the plan.
    for path in [tmp_path / "out" / "manifest.json", *(tmp_path / "out").glob("*.tfrecord")]:
        path.unlink()
    for folder in (tmp_path / "out").glob(".prep/*/train"):
        shutil.rmtree(folder)
    build(dataset, tmp_path / "out", dedup="exact", split="train")
    assert filtered(tmp_path / "out") == {"duplicate": 10}
    assert building.command("verify", tmp_path / "out").status == 0


def test_a_file_of_keys_that_is_gone_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job may have deleted it. Without it, duplicates would stay."""
    dataset, find = write(tmp_path / "in", train_b=COPIES), deciding.find_duplicates

    def robbed(comparison: deciding.Comparison, *task: Any) -> Any:
        Path(comparison.folder, "keys-0-0").unlink()
        return find(comparison, *task)

    monkeypatch.setattr(deciding, "find_duplicates", robbed)
    outcome = building.command("build", dataset, *building.options(tmp_path / "out", dedup="exact"))
    assert "keys-0-0: this file disappeared while rows were compared" in outcome.error[0]
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out").glob(".prep/rows-*"))


@pytest.mark.parametrize(
    "rows",
    [
        {"row": range(2000), "reason": ["duplicate"] * 2000, "of_split": ["train"] * 2000, "of_row": [0] * 2000},
        {"row": [1], "reason": ["x" * (8 << 20)], "of_split": ["train"], "of_row": [0]},
    ],
    ids=["rows", "texts"],
)
def test_a_decision_larger_than_its_split_is_not_unpacked(
    compared: tuple[Path, Path], tmp_path: Path, rows: dict[str, Any]
) -> None:
    """Megabytes may unpack to gigabytes."""
    shutil.copytree(compared[1], tmp_path / "out")
    (path,) = (tmp_path / "out").glob(".prep/*/decided/train.parquet")
    pq.write_table(pa.table(rows).cast(unused_rows.TYPES), path, compression="zstd")
    shard = next((tmp_path / "out").glob("*train*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "expected at most 610 short rows" in building.command("verify", tmp_path / "out", "--repair").error[0]
