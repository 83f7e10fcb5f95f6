"""The cases of docs/reference/difficult-data.md, built by the real command: kept, rejected, or refused.

Kept       built unchanged; the tokens of every row equal the output of `transformers`
Rejected   these rows are counted by reason; the build stops, unless --max-error-rate allows them
Refused    two lines, a cause and a remedy, and no dataset
"""

import dataclasses
import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from pipelines.prepare.sources.rows.unused_rows import words_of
from tests import building
from tests.building import REPOSITORY, Outcome
from tests.support import texts

Files = Mapping[str, bytes | str] | Callable[[Path], object]

LENGTH = 32
CLASSES = ("no", "yes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A source and options of a build, with the expected result.

    kept        `texts` of the built rows, and their other `columns`; the build prints `notice`
    rejected    the rejected rows by reason; the other fields describe the remaining rows
    refused     patterns for the cause and the remedy
    """

    outcome: str
    files: Files
    texts: Sequence[str] = ()
    columns: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    names: tuple[str, ...] | None = None
    tokens_cut: int = 0
    notice: str = ""
    reasons: Mapping[str, int] = dataclasses.field(default_factory=dict)
    cause: str = ""
    remedy: str = ""
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)


def kept(files: Files, texts: Sequence[str], *, label: Sequence[Any] = (), **more: Any) -> Case:
    labels: dict[str, Any] = {"columns": {"label": label}, "options": LABEL} if label else {}
    return Case(**{"outcome": "kept", "files": files, "texts": texts, **labels, **more})


def rejected(files: Files, reasons: Mapping[str, int], texts: Sequence[str], **more: Any) -> Case:
    return kept(files, texts, outcome="rejected", reasons=reasons, **more)


def refused(files: Files, cause: str, remedy: str, **more: Any) -> Case:
    return Case(outcome="refused", files=files, cause=cause, remedy=remedy, **more)


LABEL = {"label_column": "label"}
TO_UTF8 = "convert it to UTF-8"
MEND = "correct the file or leave it out"
NO_LABEL = {"label_null": 1}
NO_ROWS = ("no rows, expected at least one", "check the content of the files")


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def train(*rows: object) -> Files:
    return {"train.jsonl": jsonl(*rows)}


def labelled(*labels: object) -> Files:
    return train(*({"text": chr(ord("a") + index), "label": label} for index, label in enumerate(labels)))


def parquet(name: str = "train.parquet", **columns: Any) -> Callable[[Path], object]:
    return lambda folder: pq.write_table(pa.table(columns), folder / name)


def several(*writers: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [write(folder) for write in writers]


def truncated_parquet(folder: Path) -> None:
    parquet(text=["a"] * 1000)(folder)
    path = folder / "train.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def repeated_parquet(folder: Path) -> None:
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), folder / "train.parquet")


def classes(*labels: int) -> Callable[[Path], object]:
    """An Arrow file with class labels, which `datasets` does not check."""
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=[*CLASSES])})
    columns = {"text": [chr(ord("a") + index) for index in range(len(labels))], "label": labels}
    return arrow(pa.table(columns).cast(features.arrow_schema))


def arrow(table: pa.Table) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        with pa.ipc.new_stream(str(folder / "train.arrow"), table.schema) as writer:
            writer.write_table(table)

    return write


def broken_strings() -> pa.Table:
    offsets = pa.py_buffer(np.array([0, 2, 3], np.int32))
    return pa.table({"text": pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfea")])})


LONG = ("x" * 999 + " ") * 1_000
CONTROLS = ["a\0b", "".join(map(chr, range(32))), "a\x07b \x1b[31mred\x1b[0m", "\x7f\x80\x9f"]
SCRIPTS = ["👨‍👩‍👧‍👦 🇩🇪 👍🏽", "שלום مرحبا", "\u202eabc\u202c", "e\u0301 a\u0300\u0316", "한국어 中文"]
SPECIAL = ["[PAD] [CLS]", "[MASK][SEP] [UNK]", "[PAD]"]

CASES: dict[str, Case] = {
    # Texts
    "null-text": rejected(
        {"train.jsonl": '{"text": "a"}\n{"text": null}\n{"n": 1}\nnull\n{"text": "b"}'}, {"text_null": 3}, ["a", "b"]
    ),
    "null-text-of-a-pair": rejected(
        train({"text": "a", "more": None}, {"text": "b", "more": "c"}),
        {"text_null": 1},
        ["b", "c"],
        options={"text_column": ("text", "more")},
    ),
    "nothing-but-null": refused(
        train({"text": None}, {"text": None}), "column 'text' holds null, expected text", "convert one with a --map"
    ),
    "empty-text": kept(train({"text": ""}, {"text": "a"}), ["", "a"]),
    "long-row": kept(train({"text": LONG}, {"text": "a"}), [LONG, "a"], tokens_cut=1_002 - LENGTH),
    "long-word": kept(train({"text": texts.ONE_MB_WORD}, {"text": "a"}), [texts.ONE_MB_WORD, "a"]),
    "special-tokens": kept(train(*({"text": text} for text in SPECIAL)), SPECIAL),
    "control-characters": kept(train(*({"text": text} for text in CONTROLS)), CONTROLS),
    "scripts": kept(train(*({"text": text} for text in SCRIPTS)), SCRIPTS),
    "list-text": refused(
        train({"text": ["a", "b"], "other": "c"}), "column 'text' holds list<.*>, expected text", "--text-column: other"
    ),
    "mixed-json-text": refused(
        train({"text": "a"}, {"text": 5}, {"text": ["b"]}),
        "column 'text' holds JSON values of several types, expected text",
        "no column of this dataset fits --text-column",
    ),
    "repeated-header-csv": kept(
        {"train.csv": "text,label,text\na,5,b\nc,7,d\n"},
        ["a", "c"],
        label=[5, 7],
        notice="several columns are named 'text': the first is used; pandas renames the next to 'text.1'",
    ),
    "long-rows-csv": refused(
        {"train.csv": "text,label\nwell, yes,5\nb,7\n"},
        "train.csv: rows have more cells than the header has names",
        "add names to the header, or add --source-option index_col=0",
    ),
    "late-delimiters-csv": refused(
        {"train.csv": "text,label\na,5\nb,7,\n"},
        "train.csv: line 3 has 3 cells, expected 2 as in the lines before it",
        "remove delimiters from the ends of rows",
    ),
    "numbers-beside-texts-json": refused(
        {"train-0.jsonl": '{"text": "a"}\n', "train-1.jsonl": '{"text": 1.0}\n'},
        r"train-1.jsonl, .*: Couldn't cast 1.0 in column 'text' to string: it would be written differently",
        "if files have different types, convert them to the same types",
    ),
    "lone-quotes-tsv": kept(
        {"train.tsv": 'text\tlabel\none\t0\n"two\t1\nthree\t0\nfour"\t1\nfive\t0\n'},
        ["one", "two\t1\nthree\t0\nfour", "five"],
        label=[0, 1, 0],
        notice="row 1 is 3 lines of the file, joined by quotes, though each line looks like a row; if quotes are plain",
    ),
    "null-words-csv": rejected(
        {"train.csv": 'text,n\nNA,1\nnull,2\nNone,3\nnan,4\nN/A,5\n"",6\n,7\na,8\n'}, {"text_null": 7}, ["a"]
    ),
    # Labels and kept columns
    "null-label": rejected(labelled(1, None, 0), NO_LABEL, ["a", "c"], label=[1, 0]),
    "nan-label": rejected(labelled(0.5, float("nan"), 1.5), NO_LABEL, ["a", "c"], label=[0.5, 1.5]),
    "huge-float-label": rejected(labelled(0.5, 1e300), {"float_out_of_range": 1}, ["a"], label=[0.5]),
    "class-minus-one": kept(classes(0, -1, 1), ["a", "b", "c"], label=[0, -1, 1]),
    "class-minus-two": rejected(classes(0, -2, 1), {"label_out_of_range": 1}, ["a", "c"], label=[0, 1]),
    "class-too-large": rejected(classes(0, 2), {"label_out_of_range": 1}, ["a"], label=[0]),
    "label-of-another-split": kept(
        {"train.jsonl": jsonl({"text": "a", "label": "new"}), "test.jsonl": jsonl({"text": "b", "label": "known"})},
        ["a"],
        label=[1],
        options={**LABEL, "split": "train"},
        names=("known", "new"),
    ),
    "mixed-json-label": refused(
        labelled(1, "x"),
        "label column 'label' holds JSON values of several types, expected class labels, strings or numbers",
        "choose another --label-column",
        options=LABEL,
    ),
    "beyond-int32": rejected(
        labelled(2**31 - 1, 2**31, -(2**31)), {"int_out_of_range": 1}, ["a", "c"], label=[2**31 - 1, -(2**31)]
    ),
    "integers-with-gaps-csv": rejected({"train.csv": "text,label\na,1\nb,\nc,0\n"}, NO_LABEL, ["a", "c"], label=[1, 0]),
    "vector-lengths": rejected(
        train(*({"text": "a", "v": v} for v in ([1, 2], [1], [], [3, 4]))),
        {"column_length": 2},
        ["a", "a"],
        options={"keep_column": "v"},
        columns={"v": [[1, 2], [3, 4]]},
    ),
    "null-in-a-vector": rejected(
        train(*({"text": "a", "v": v} for v in ([1, 2], [None, 1], None, [3, 4]))),
        {"column_null": 2},
        ["a", "a"],
        options={"keep_column": "v"},
        columns={"v": [[1, 2], [3, 4]]},
    ),
    # Letters
    "invalid-utf8-jsonl": refused(
        {"train.jsonl": b'{"text": "caf\xe9 x"}\n'}, r"column 'text': b'caf\\xe9 x' is not UTF-8", TO_UTF8
    ),
    "invalid-utf8-label": refused(
        {"train.jsonl": b'{"text": "b", "label": "caf\xe9 x"}\n'},
        r"column 'label': b'caf\\xe9 x' is not UTF-8",
        TO_UTF8,
        options=LABEL,
    ),
    "invalid-utf8-csv": refused({"train.csv": b"text,n\ncaf\xe9 x,1\n"}, "cannot be read: not UTF-8, ", TO_UTF8),
    "invalid-utf8-parquet": refused(
        parquet(text=broken_strings()["text"]), r"column 'text': b'\\xff\\xfe' is not UTF-8", TO_UTF8
    ),
    "line-ends-csv": kept({"train.csv": b'text,n\r\na,1\r\n"b\r\nc",2\r\n'}, ["a", "b\r\nc"]),
    # Structure
    "repeated-column-parquet": refused(
        repeated_parquet, "train.parquet: several columns 'text', expected one", "all files"
    ),
    "byte-order-mark": kept({"train-0.txt": "\ufeffa\nb", "train-1.txt": "\ufeffc"}, ["a", "b", "c"]),
    "git-lfs-pointer": refused(
        {"train.txt": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"},
        "train.txt: a git-lfs pointer",
        "run `git lfs pull`",
    ),
    "gzip-by-another-name": refused(
        {"train.jsonl": gzip.compress(b'{"text": "a"}')}, "train.jsonl: compressed, but its name does not", "add .gz"
    ),
    "broken-line": refused(
        {"train.jsonl": '{"text": "a"}\n{"text": "b\n{"text": "c"}\n'},
        "train.jsonl: cannot be read: JSON parse error: .* in row 1",
        MEND,
    ),
    "truncated-zst": refused(
        {"train.csv.zst": zstd.compress("\n".join(("text", *map(hex, range(100_000)))).encode())[:-100]},
        "train.csv.zst.*: cannot be read: Compressed file ended before the end",
        MEND,
    ),
    "truncated-parquet": refused(
        truncated_parquet, "train.parquet: cannot be read as a Parquet file .*corrupted", "copy the file again"
    ),
    "only-a-header": refused({"train.csv": "text,n\n"}, NO_ROWS[0], NO_ROWS[1]),
    "no-row-groups": refused(parquet(text=pa.array([], pa.string())), NO_ROWS[0], NO_ROWS[1]),
    "empty-split": kept(
        {"train.csv": "text,n\na,1\n", "test.csv": "text,n\n"}, ["a"], notice="split 'test' has no rows and is left out"
    ),
    "later-file-without-column": rejected(
        {"a.jsonl": jsonl({"text": "a", "label": 1}), "b.jsonl": jsonl({"text": "b"})}, NO_LABEL, ["a"], label=[1]
    ),
    "first-file-without-column": refused(
        {"train-0.jsonl": jsonl({"text": "a"}), "train-1.jsonl": jsonl({"text": "b", "label": 1})},
        "split 'train' has no column 'label'",
        "choose among its columns: text",
        options=LABEL,
    ),
    "file-without-column-parquet": refused(
        several(parquet("train-0.parquet", text=["a"], label=[1]), parquet("train-1.parquet", text=["b"])),
        "train-1.parquet: no column 'label', expected one, as in the first file or the dataset card",
        "give all files the same columns",
        options=LABEL,
    ),
    "type-of-another-file": refused(
        several(parquet("a.parquet", text=["a"]), parquet("b.parquet", text=[7])),
        "b.parquet: column 'text' holds int64, expected string, as in the first file or the dataset card",
        "convert all files to the same types",
    ),
    "late-keys": kept(
        train(*({"text": "a", "more": "x" * 1_000_000} for _ in range(12)), {"text": "b", "label": 1}),
        ["a"] * 12 + ["b"],
        notice="the first rows do not have all keys or types: column 'label'; reading the source again",
    ),
    "late-fractions": kept(
        train(
            *({"text": "a", "in": {"n": 1}, "more": "x" * 1_000_000} for _ in range(12)),
            {"text": "b", "in": {"n": 1.5}},
        ),
        ["a"] * 12 + ["b"],
        notice="Float value 1.500000 was truncated converting to int64; reading the source again",
    ),
    "fractions-in-a-later-file": refused(
        {"train-1.jsonl": '{"text": "a", "n": 1}\n', "train-2.jsonl": '{"text": "b", "n": 1.5}\n'},
        "train-2.jsonl.*Float value 1.500000 was truncated",
        "if files have different types, convert them to the same types",
    ),
    "pandas-json": refused(
        {"train.json": '{"text": {"0": "a"}}'}, "column 'text' holds struct<", "write it with orient='records'"
    ),
    "squad-json": refused(
        {"train.json": '{"version": "1", "data": [{"title": "a", "paragraphs": []}]}'},
        "split 'train' has no column 'text'",
        "if the rows are inside 'data', as in SQuAD's own files, add --source-option field=data",
    ),
    "nothing-usable": refused(
        train({"text": "a", "label": None}, {"text": None, "label": 1}),
        "split 'train': none of the sampled rows can be used",
        "check --text-column, --label-column, and that a --filter leaves rows",
        options={**LABEL, "max_error_rate": 1},
    ),
}


def write(folder: Path, files: Files) -> Path:
    folder.mkdir()
    if callable(files):
        files(folder)
    else:
        for name, content in files.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def build(folder: Path, files: Files, **options: object) -> Outcome:
    data = folder / "data"
    source = data if data.exists() else write(data, files)
    changes = {"max_length": LENGTH, "no_shuffle": True, **options}
    return building.command("build", source, *building.options(folder / "out", **changes))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(building.tokenizer())


def require_rows(root: Path, case: Case, tokenizer: Any) -> None:
    """The records of split train hold the case's texts, as `transformers` makes tokens of them, and its columns."""
    pair = len(case.texts) // 2 if case.options.get("text_column") else None
    sides = [list(case.texts)] if pair is None else [list(case.texts[:pair]), list(case.texts[pair:])]
    expected = tokenizer(*sides, truncation=True, max_length=LENGTH, padding="max_length")
    rows = building.read_rows(root, "train")
    assert {name: rows.pop(name).tolist() for name in expected} == dict(expected)
    assert {n: values.tolist() for n, values in rows.items()} == {n: list(values) for n, values in case.columns.items()}
    for name, values in case.columns.items():
        wanted = np.asarray(values).dtype.kind
        assert rows[name].dtype == (np.float32 if wanted == "f" else np.int64)


@pytest.mark.parametrize("name", CASES)
def test_hostile_data_has_the_documented_outcome(tmp_path: Path, tokenizer: Any, name: str) -> None:
    case = CASES[name]
    outcome = build(tmp_path, case.files, **case.options)
    if case.outcome == "refused":
        assert outcome.status == 1
        assert re.search(case.cause, outcome.error[0])
        assert case.remedy in outcome.error[1]
        assert {path.name for path in tmp_path.glob("out/*")} <= {".prep"}
        return
    if case.outcome == "rejected":
        counts = [f"{words_of(reason)} in {rows}" for reason, rows in sorted(case.reasons.items())]
        assert outcome.status == 1
        assert f"rows cannot be used (train: {', '.join(counts)})" in outcome.error[0]
        assert outcome.error[0].startswith(f"{sum(case.reasons.values())} of ")
        remedy, _, keep_words = outcome.error[1].partition("; ")
        assert remedy == "correct or filter such rows, or allow a share of them with --max-error-rate"
        is_csv = any(path.suffix == ".csv" for path in (tmp_path / "data").iterdir())
        assert ("keep_default_na=false" in keep_words) == (is_csv and {"text_null", "label_null"} >= {*case.reasons})
        assert {path.name for path in tmp_path.glob("out/*")} <= {".prep"}
        outcome = build(tmp_path, case.files, **case.options, max_error_rate=0.95)
    assert outcome.status == 0, outcome.err
    facts = building.read_manifest(tmp_path / "out")
    assert list(facts.splits) == ["train"]
    ledger = facts.splits["train"].ledger
    assert (ledger.rejected, ledger.tokens_cut) == (case.reasons, case.tokens_cut)
    require_rows(tmp_path / "out", case, tokenizer)
    assert case.notice in outcome.err
    assert case.names is None or facts.label_names == case.names


def test_the_page_has_a_row_for_each_exception_and_its_result() -> None:
    page = (REPOSITORY / "docs" / "reference" / "difficult-data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| .+ \| (.+) \|$", page, re.M)
    names = [name for name, _ in rows]
    assert names == [name for name, case in CASES.items() if name in names or case.outcome != "kept"]
    for name, result in rows:
        case = CASES[name]
        assert result.startswith(case.outcome), name
        if case.outcome == "rejected":
            assert re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)`", result) == sorted(case.reasons), name
