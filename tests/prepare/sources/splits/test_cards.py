"""A card says the same splits, configurations and columns here as with `load_dataset`; or it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.splits import card_features, cards
from pipelines.prepare.sources.splits.resolve import resolve
from tests.prepare.sources.splits.test_split_rules import ours, theirs, write
from tfrecord_io.errors import SourceError

NAMES = [
    *("a.jsonl", "b.jsonl", "test.jsonl", "en/train.jsonl", "en/test.jsonl", "de/0.jsonl", "de/1.jsonl"),
    *("data/en-00000.jsonl", "data/en-00001.jsonl", "data/de-00000.jsonl", "deep/er/x.jsonl", "__odd/y.jsonl"),
]
TWO = """configs:
- config_name: en
  data_files: en/train.jsonl
- config_name: de
  data_files: de/*.jsonl
"""
# Each with the configurations to ask for.
CARDS: list[tuple[str, list[str | None]]] = [
    ("license: mit\n", [None, "default"]),
    ("configs: []\n", [None]),
    ("configs:\n- config_name: default\n  data_files: b.jsonl\n", [None, "default"]),
    ("configs:\n- config_name: only\n  data_files: [b.jsonl, a.jsonl]\n", [None, "only"]),
    ("configs:\n- config_name: x\n  data_files: 'data/en-*.jsonl'\n", [None]),
    ("configs:\n- config_name: x\n  data_files: '**/*.jsonl'\n", [None]),
    ("configs:\n- config_name: x\n  data_files: ./de/../en/*.jsonl\n", [None]),
    ("configs:\n- config_name: x\n  data_files: ./de/*\n", [None]),
    ("configs:\n- config_name: x\n  data_files: 'd?/[01].jsonl'\n", [None]),
    ("configs:\n- config_name: x\n  data_files: deep/**\n", [None]),
    ("configs:\n- config_name: x\n  data_files: '**/[!d]*.jsonl'\n", [None]),
    (
        "configs:\n- config_name: x\n  data_files: [{split: test, path: b.jsonl}, {split: train, path: a.jsonl}]\n",
        [None],
    ),
    (
        "configs:\n- config_name: x\n  data_files:\n  - split: all.2\n    path: [de/*.jsonl, a.jsonl]\n"
        "  - split: again\n    path: a.jsonl\n",
        [None],
    ),
    (TWO, ["en", "de"]),
    (TWO.replace("name: de", "name: default"), [None, "en", "default"]),
    (TWO + "  default: true\n", [None, "en", "de"]),
    (TWO + "dataset_info:\n  config_name: de\n", [None]),
    ("configs:\n- config_name: x\n  data_dir: en\n- config_name: y\n  data_dir: de\n", ["x", "y"]),
    ("configs:\n- config_name: x\n  data_dir: en\n  data_files: train.jsonl\n", []),
    ("configs:\n- config_name: x\n  version: 1.0.0\n  description: new\n  sep: ';'\n  data_files: a.jsonl\n", [None]),
]
REFUSED = [
    (TWO, None, "has the configurations en, de, and none of them is the default", "--config en"),
    (TWO, "fr", "no configuration 'fr', expected en, de", "choose one of them"),
    (TWO, "ed", "no configuration 'ed', expected en, de", "choose one of them"),
    ("license: mit\n", "en", "no configuration 'en', expected default", "leave --config out"),
    ("configs: 3\n", None, "the dataset card cannot be understood: configs, expected a list", "correct it"),
    ("configs:\n- data_files: a\n", None, "cannot be understood: configs, expected a list of entries", "correct it"),
    ("configs: [\n", None, "README.md: the dataset card cannot be understood: while parsing", "correct it"),
    ("- a\n", None, "README.md: the dataset card cannot be understood: list at the top level", "correct it"),
    ("configs:\n- config_name: a\n  data_files: 3\n", None, "data_files, expected a pattern", "correct it"),
    (
        "configs:\n- config_name: a\n  data_files:\n  - {split: b, path: a.jsonl}\n  - {split: b, path: b.jsonl}\n",
        None,
        "split 'b' is listed twice",
        "correct it",
    ),
    (
        TWO.replace("name: en", "name: default") + "  default: true\n",
        "de",
        "default and de are both the default",
        "correct it",
    ),
    ("configs:\n- config_name: a\n  data_files: none.jsonl\n", None, "names none.jsonl, but there is no", "glob"),
    ("configs:\n- config_name: a\n  data_files: 'x*.jsonl'\n", None, r"names x\*.jsonl, but there is no", "glob"),
    ("configs:\n- config_name: a\n  data_files: '**.jsonl'\n", None, r"names \*\*.jsonl: Invalid pattern", "glob"),
    (
        "configs:\n- config_name: a\n  data_files: [a.jsonl, '*.jsonl']\n",
        None,
        "names a.jsonl twice",
        "correct the card",
    ),
    (
        "configs:\n- config_name: a\n  data_files: {split: 'a-b', path: a.jsonl}\n",
        None,
        "split 'a-b', expected",
        "rename",
    ),
    ("configs:\n- config_name: a\n  data_files: '*/y.jsonl'\n", None, "but there is no such data file", "glob"),
    ("configs:\n- config_name: a\n  data_files: __odd/*.jsonl\n", None, "but there is no such data file", "glob"),
    (
        "configs:\n- config_name: a\n  data_files: a.jsonl\n  encoding: latin-1\n",
        None,
        "json files the option encoding",
        "save_to_disk",
    ),
    ("configs:\n- config_name: a\n  data_dir: none\n", None, "none: no data file", "glob"),
]


def _with_card(folder: Path, card: str, names: list[str] = NAMES) -> Path:
    write(folder, names)
    (folder / "README.md").write_text(f"---\n{card}---\n# A dataset\n")
    return folder


@pytest.mark.parametrize(("card", "config"), [(card, config) for card, configs in CARDS for config in configs], ids=str)
def test_a_card_gives_the_splits_and_rows_of_load_dataset(tmp_path: Path, card: str, config: str | None) -> None:
    names = [name for name in NAMES if "configs:\n" in card or name in ("a.jsonl", "b.jsonl")]
    folder = _with_card(tmp_path, card, names)
    found = ours(folder, config)
    expected = theirs(folder, config)
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(("card", "config", "cause", "remedy"), REFUSED)
def test_a_card_that_cannot_be_followed_is_refused(
    tmp_path: Path, card: str, config: str | None, cause: str, remedy: str
) -> None:
    with pytest.raises(SourceError, match=cause) as caught:
        ours(_with_card(tmp_path, card), config)
    assert remedy in caught.value.remedy
    assert "\n" not in caught.value.cause


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret.jsonl", "gs://other/a.jsonl", "a/../../x.jsonl", "~/a.jsonl"]
)
@pytest.mark.parametrize("key", ["data_files", "data_dir"])
def test_a_card_names_nothing_but_what_is_below_it(tmp_path: Path, key: str, path: str) -> None:
    (tmp_path / "secret.jsonl").write_text('{"text": "secret"}\n')
    folder = _with_card(tmp_path / "folder", f"configs:\n- config_name: a\n  {key}: {path}\n")
    with pytest.raises(SourceError, match=r"expected a path below|no such data file|no data file"):
        ours(folder)


def test_the_standalone_file_goes_before_the_card(tmp_path: Path) -> None:
    _with_card(tmp_path, "configs:\n- config_name: a\n  data_files: a.jsonl\n")
    (tmp_path / ".huggingface.yaml").write_text("configs:\n- config_name: b\n  data_files: b.jsonl\n")
    assert ours(tmp_path) == theirs(tmp_path) == {"train": ["b.jsonl"]}


@pytest.mark.parametrize(
    "card",
    [
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)),
        "a: &a [*a]\n",
    ],
)
def test_aliases_that_stand_for_any_number_of_values_are_refused(tmp_path: Path, card: str) -> None:
    with pytest.raises(SourceError, match="more than 1,000,000 values"):
        ours(_with_card(tmp_path, card))


def test_nothing_in_a_card_is_run(tmp_path: Path) -> None:
    card = "configs: !!python/object/apply:os.system ['touch ran']\n"
    with pytest.raises(SourceError, match="could not determine a constructor"):
        ours(_with_card(tmp_path, card))
    assert not (tmp_path / "ran").exists()


def test_a_card_without_end_is_no_card(tmp_path: Path) -> None:
    write(tmp_path, ["train.jsonl", "test.jsonl"])
    (tmp_path / "README.md").write_text("# Data\n---\nconfigs: none of these are\n")
    assert ours(tmp_path) == theirs(tmp_path)


@pytest.mark.parametrize(("sep", "kind"), [('";"', None), ('"\\t"', "tsv"), ('","', "csv")])
@pytest.mark.parametrize("option", ["sep", "delimiter"])
def test_the_separator_of_a_card_says_the_kind_of_its_files(
    tmp_path: Path, option: str, sep: str, kind: str | None
) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx,1\n")
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: a\n  {option}: {sep}\n---\n")
    if kind is None:
        with pytest.raises(SourceError, match=f"the option {option}"):
            resolve(SourceConfig(dataset=str(tmp_path)))
        return
    assert [file.kind for file in resolve(SourceConfig(dataset=str(tmp_path))).splits["train"]] == [kind]


@pytest.mark.parametrize("kind", ["csv", "json", "text", "parquet", "arrow"])
def test_every_option_that_a_reader_takes_is_known(kind: str) -> None:
    import dataclasses
    import importlib

    module = importlib.import_module(f"datasets.packaged_modules.{kind}.{kind}")
    fields = {each.name for each in dataclasses.fields(getattr(module, f"{kind.capitalize()}Config"))}
    harmless = {"name", "version", "data_dir", "data_files", "description", "features"}
    options = dict.fromkeys(fields - harmless, 1)
    assert cards.Config(name="x", options={**options, "unknown": 1}).options_of(kind) == options


FEATURES = datasets.Features(
    {
        "text": datasets.Value("string"),
        "when": datasets.Value("timestamp[s, tz=UTC]"),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "tags": datasets.List(datasets.ClassLabel(names=["O", "B"])),
        "three": datasets.List(datasets.Value("int8"), length=3),
        "large": datasets.LargeList(datasets.Value("float32")),
        "turns": datasets.List({"role": datasets.Value("string"), "said": datasets.List(datasets.Value("string"))}),
        "nested": {"a": {"b": datasets.Value("bool")}, "c": [datasets.Value("int64")]},
        "image": datasets.Image(),
        "matrix": datasets.Array2D(shape=(2, 3), dtype="int32"),
        "both": datasets.Translation(languages=["de", "en"]),
    }
)
OLD = """
- name: words
  sequence: string
- name: answers
  sequence:
  - name: text
    dtype: string
  - name: start
    dtype: int32
- name: tags
  sequence:
    class_label:
      names:
        '0': O
        '1': B
"""


@pytest.mark.parametrize("columns", [FEATURES._to_yaml_list(), None])
def test_columns_are_those_that_datasets_takes_from_a_card(columns: list[Any] | None) -> None:
    import yaml

    said = columns or yaml.safe_load(OLD)
    expected = datasets.Features._from_yaml_list(json.loads(json.dumps(said)))
    found = card_features.as_json(said)
    assert datasets.Features.from_dict(json.loads(json.dumps(found))) == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    "columns", ["text", [3], [{"dtype": "string"}], [{"name": "a", "dtype": {"class_label": {"names": {"1": "x"}}}}]]
)
def test_columns_that_are_none_are_refused(tmp_path: Path, columns: Any) -> None:
    card = f"dataset_info:\n  features: {json.dumps(columns)}\n"
    with pytest.raises(SourceError, match="the dataset card cannot be understood"):
        ours(_with_card(tmp_path, card, ["a.jsonl"]))


@pytest.mark.parametrize(
    ("card", "config", "found"),
    [
        ("dataset_info: {features: [{name: text, dtype: string}]}\n", None, True),
        (TWO + "dataset_info:\n- {config_name: de, features: [{name: text, dtype: string}]}\n", "de", True),
        (TWO + "dataset_info:\n- {config_name: de, features: [{name: text, dtype: string}]}\n", "en", False),
        (TWO + "  features: [{name: text, dtype: string}]\n", "de", True),
        (TWO, "en", False),
    ],
)
def test_the_columns_are_those_of_the_configuration(tmp_path: Path, card: str, config: str | None, found: bool) -> None:
    folder = _with_card(tmp_path, card, NAMES if config else ["a.jsonl"])
    expected = {"text": {"dtype": "string", "_type": "Value"}} if found else None
    assert resolve(SourceConfig(dataset=str(folder), config=config)).features == expected


def test_columns_of_old_releases_are_found(tmp_path: Path) -> None:
    write(tmp_path, ["a.jsonl"])
    features = {"text": {"dtype": "string", "_type": "Value"}}
    (tmp_path / "dataset_infos.json").write_text(json.dumps({"me--data": {"features": features}}))
    assert resolve(SourceConfig(dataset=str(tmp_path))).features == features
