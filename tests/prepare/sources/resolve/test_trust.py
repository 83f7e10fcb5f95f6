"""No card of a dataset leads out of it, asks the network, or occupies the process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.resolve.library import SourceListing
from pipelines.prepare.sources.resolve.resolve import resolve
from tests.prepare.sources.web import Web, serving
from tfrecord_io.errors import SourceError

ROW = b'{"text": "a"}\n'
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(lambda method, path, query: (404, b"", {})) as server:
        yield server


def _folder(tmp_path: Path, yaml: str, *, name: str = "README.md") -> Path:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_bytes(ROW)
    (tmp_path / "secret.jsonl").write_bytes(ROW)
    (data / name).write_text(yaml if name.endswith(".yaml") else f"---\n{yaml}\n---\n# Data\n")
    return data


def _resolve(dataset: Path | str) -> SourceListing:
    return resolve(SourceConfig(dataset=str(dataset)))


HERE = "http://127.0.0.1:PORT"
OUTSIDE = (
    *(f"{HERE}/a.jsonl", f"zip://a.jsonl::{HERE}/a.zip", "file:///etc/passwd", "hf://datasets/other/data/a.jsonl"),
    *("/etc/passwd", "../secret.jsonl", "x/../../secret.jsonl", "~/secret.jsonl"),
)


@pytest.mark.parametrize(
    ("name", "configs", "outside"),
    [
        *(("README.md", "[{config_name: x, data_files: '{}'}]", outside) for outside in OUTSIDE),
        ("README.md", "[{config_name: x, data_files: ['*.jsonl', '{}']}]", "../secret.jsonl"),
        (".huggingface.yaml", "[{config_name: x, data_files: [{split: train, path: ['{}']}]}]", f"{HERE}/a.jsonl"),
        *(
            ("README.md", "[{config_name: x, data_files: '*.jsonl'}, {config_name: y, data_dir: '{}'}]", outside)
            for outside in ("/etc/passwd", f"{HERE}/a.jsonl")
        ),
    ],
)
def test_a_card_that_leads_out_is_refused_before_anybody_is_asked(
    tmp_path: Path, web: Web, name: str, configs: str, outside: str
) -> None:
    outside = outside.replace(HERE, web.address)
    data = _folder(tmp_path, f"configs: {configs.replace('{}', outside)}", name=name)
    with pytest.raises(SourceError, match=f"{name}: its data path .* is outside the dataset") as caught:
        _resolve(data)
    assert outside in caught.value.cause
    assert web.requests == []


def test_a_card_among_files_that_are_named_is_no_exception(tmp_path: Path, web: Web) -> None:
    address = f"{web.address}/a.jsonl"
    data = _folder(tmp_path, f"configs: [{{config_name: x, data_files: '{address}'}}]")
    with pytest.raises(SourceError, match="is outside the dataset"):
        _resolve(data / "*")
    assert web.requests == []


HUGE = {
    "aliases": f"{BOMB}configs: [{{config_name: x, data_files: *i}}]",
    "endless": "a: &a [*a]",
    "deep": "a: " + "[" * 300_000,
    "deep block": "\n".join(" " * depth + "a:" for depth in range(700)),
    "large": "text: " + "x" * (1 << 20),
    "many": "a: [" + "1," * 250_000 + "]",
}


@pytest.mark.parametrize(("name", "kind"), [*(("README.md", kind) for kind in HUGE), (".huggingface.yaml", "large")])
def test_a_card_that_would_occupy_the_process_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    with pytest.raises(SourceError, match=f"{name}: more than"):
        _resolve(_folder(tmp_path, HUGE[kind], name=name))


def test_a_card_may_repeat_itself_by_an_alias(tmp_path: Path) -> None:
    yaml = "configs:\n- {config_name: x, data_files: &files [{split: a, path: '*.jsonl'}]}\n"
    yaml += "- {config_name: y, default: true, data_files: *files}"
    assert list(_resolve(_folder(tmp_path, yaml)).splits) == ["a"]


def test_an_empty_card_says_nothing(tmp_path: Path) -> None:
    assert list(_resolve(_folder(tmp_path, "")).splits) == ["train"]


@pytest.mark.parametrize(
    "yaml", ["- a", "configs: [", "configs: 1", "configs: [1, {config_name: x, data_files: {a: [b]}}]"]
)
def test_a_card_that_datasets_cannot_read_is_refused(tmp_path: Path, yaml: str) -> None:
    with pytest.raises(SourceError, match="`datasets` cannot open it"):
        _resolve(_folder(tmp_path, yaml))
