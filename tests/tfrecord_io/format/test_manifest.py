"""manifest.json: canonical text on one side, a consistent manifest or a ManifestError on the other."""

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.manifests import Document, document, make, make_shard
from tfrecord_io import manifest
from tfrecord_io.errors import ManifestError
from tfrecord_io.format import json_fields
from tfrecord_io.manifest import Generation, Ledger, Manifest, Split


def parsed(content: Document) -> Manifest:
    return manifest.parse(json.dumps(content))


def test_the_text_is_canonical() -> None:
    text = manifest.dump(make())
    assert manifest.dump(manifest.parse(text)) == text
    assert [line for line in text.decode().splitlines() if "num_bytes" in line or '"special_ids' in line] == [
        '      "num_bytes": 100,',
        '        "num_bytes": [100],',
        '      "num_bytes": 200,',
        '        "num_bytes": [100, 100],',
        '    "special_ids": [0, 1, 99],',
    ]
    pretty = json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
    assert re.sub(r"\s+", "", pretty) == re.sub(r"\s+", "", text.decode())


@pytest.mark.parametrize("path", [("tokenizer", "mask_id"), ("tokenizer", "special_ids", 0), ("options", "seed")])
def test_a_change_that_contradicts_nothing_is_noticed_too(path: tuple[str | int, ...]) -> None:
    content = json.loads(manifest.dump(make()))
    _change(*path, value=5)(content)
    with pytest.raises(ManifestError, match=r"sha256 is .* the file was damaged or edited"):
        parsed(content)
    del content["sha256"]
    parsed(content)


def test_the_digest_covers_fields_of_newer_versions() -> None:
    content = {**document(), "zone": {"a": [1.5, "ü"]}}
    text = manifest.dump(make()).decode().rpartition("}")[0].rstrip() + ',\n  "zone": {\n    "a": [1.5, "ü"]\n  }\n}\n'
    text = re.sub(r'  "sha256": "\w+",\n', "", text, count=1)
    assert json.loads(text) == content
    sealed = {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    assert parsed(sealed) == make()
    with pytest.raises(ManifestError, match="sha256 is"):
        parsed({**sealed, "zone": {"a": [1.5, "u"]}})


def test_the_order_in_which_things_were_put_in_changes_no_byte() -> None:
    made = make()
    turned = make(splits=dict([*made.splits.items()][::-1]), options=dict([*made.options.items()][::-1]))
    assert manifest.dump(turned) == manifest.dump(make())
    assert manifest.digest(turned) == manifest.digest(make())


@pytest.mark.parametrize("version", ["1.0", "1.2", "1.99"])
def test_newer_minor_versions_are_read(version: str) -> None:
    assert parsed(document(format_version=version)) == make()


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0"])
def test_other_major_versions_are_refused_with_a_way_out(version: str) -> None:
    words = rf"format version {version}, but this library reads version 1\.x; install a release .* that reads it$"
    with pytest.raises(ManifestError, match=words):
        parsed(document(format_version=version))


@pytest.mark.parametrize("version", [None, 1.0, "", "1", "1.", ".1", "v1.0", "1.0.0", "1.x", "١.٠", "9" * 99, ["1.0"]])
def test_a_version_that_is_none_is_refused(version: Any) -> None:
    with pytest.raises(ManifestError, match=r"expected 'MAJOR\.MINOR'"):
        parsed(document(format_version=version))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"x"', "{}", '{"format": "other"}', "[" * 9_999, b"\xff"])
def test_what_is_no_manifest_is_refused(text: str | bytes) -> None:
    with pytest.raises(ManifestError, match=r"^out/manifest\.json: not ") as caught:
        manifest.parse(text, place="out/manifest.json")
    assert caught.value.remedy


def _change(*path: Any, value: Any) -> Callable[[Document], None]:
    def change(content: Document) -> None:
        at: Any = content
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def _ledgers(key: str, more: int, *keys: str) -> Callable[[Document], None]:
    """Changes a shard's ledger and the split's alike, so that they still add up."""

    def change(content: Document) -> None:
        split = content["splits"]["train"]
        for field in (key, *keys):
            split["ledger"][field] += more
            split["shards"][field][0] += more

    return change


def _labels(**labels: object) -> Callable[[Document], None]:
    return lambda content: content["splits"]["train"].update(labels=labels)


SHARDS = ("splits", "train", "shards")
HELD = {"split": "test", "of": "train", "hashes": [0, 1 << 40]}
LEDGER = ("splits", "train", "ledger")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_change("splits", "train", "num_examples", value=10), "num_examples is 10, but the shards add up to 9"),
        (_change("splits", "train", "num_bytes", value="200"), "'200', expected a whole number"),
        (_change(*SHARDS, "num_examples", 0, value=0), "num_examples is 9, but"),
        (_change(*SHARDS, "name", 0, value="../x.tfrecord"), "a plain file name"),
        (_change(*SHARDS, "name", 0, value="x.tfrecord.gz"), r"ends in \.tfrecord;"),
        (_change("compression", value="gzip"), r"ends in \.tfrecord\.gz"),
        (_change("compression", value="zip"), "'zip', expected one of"),
        (_change(*SHARDS, "name", 0, value="tiny-train-00001-of-00002.tfrecord"), "appears twice"),
        (_change(*SHARDS, "num_bytes", value=[100]), "num_bytes has 1 value for 2 shards"),
        (_change(*SHARDS, "num_bytes", 1, value=1.5), "1.5, expected a whole number"),
        (_change(*SHARDS, "rejected", value={"text_null": [3]}), "text_null has 1 value for 2 shards"),
        (_change(*SHARDS, "sha256", 0, value="AB" * 32), "expected 64 hex digits"),
        (_change(*LEDGER, "rows_in", value=13), "a split's ledger is not the sum of its shards' ledgers"),
        (_ledgers("rows_in", 1), "7 input rows, but 5 used and 1 rejected"),
        (_ledgers("rows_used", -1), "6 input rows, but 4 used and 1 rejected"),
        (_ledgers("rows_in", 1, "rows_used"), "5 examples from 6 rows, expected one per row"),
        (_labels(smallest=2, largest=1), "labels cannot have values from 2 to 1"),
        (_labels(smallest=-1, largest=1, distinct=4), "labels cannot have 4 values from -1 to 1"),
        (_change("index_stride", value=0), "index_stride is 0 with"),
        (_change("features", value=[]), "schema has no features"),
        (_change("features", 0, "dtype", value="int32"), "dtype 'int32'"),
        (_change("features", 0, "shape", value=[0]), "positive sizes"),
        (_change("features", 0, "name", value="label"), "several features have the name 'label'"),
        (_change("features", 0, "meaning", value=5), "5, expected a string"),
        (_change("features", 2, value=5), "invalid in format 1.0: 5, expected an object"),
        (_change("features", 1, "shape", value=[7]), r"'token_type_ids' is int64 \[7\], expected int64 \[8\]"),
        (_change("features", 1, "role", value="token_ids"), "'types' of role 'token_ids'.*no other feature of this r"),
        (_change("features", 0, "dtype", value="float32"), "'input_ids' of role 'token_ids' is float32"),
        (_change("features", 2, "shape", value=[2]), "3 label names, expected 2"),
        (_change("features", 2, "shape", value=[3, 1]), r"of role 'label' is int64 \[3, 1\], expected int64 \[\]"),
        (_change("features", 2, "role", value="column"), "label names, but no feature"),
        (_change("tokenizer", "vocab_size", value=99), "special id 99 is not below the vocabulary size 99"),
        (_change("tokenizer", "mask_id", value=100), "special id 100"),
        (_change("tokenizer", "sentinel_ids", value=[100]), "special id 100 is not below the vocabulary size 100"),
        (_change("tokenizer", "padding_side", value="both"), "'both', expected one of"),
        (_change("source", "splits", "train", 0, value=[12, 12]), r"rows of a split: the range \[12, 12\) is empty"),
        (_change("source", "origins", value={"test": "train"}), "split 'test' has an origin but no rows"),
        (_change("source", "origins", value={"train": "../up"}), "a plain file name"),
        (_change("source", "origins", value=["train"]), "expected an object"),
        (_change("options", value={"hold_out": {}}), "expected a list"),
        (_change("options", value={"hold_out": [{**HELD, "split": "a/b"}]}), "a plain file name"),
        (_change("options", value={"hold_out": [{**HELD, "hashes": [5, 5]}]}), r"rows: the range \[5, 5\) is empty"),
        (_change("options", value={"hold_out": [{**HELD, "hashes": [5]}]}), "not enough values"),
        (_change("options", value={"x": float("nan")}), "not JSON"),
        (_change("options", value={"x": "\ud800"}), "not JSON"),
    ],
)
def test_what_contradicts_itself_is_refused(change: Callable[[Document], None], problem: str) -> None:
    content = document()
    change(content)
    with pytest.raises(ManifestError, match=problem) as caught:
        parsed(content)
    assert caught.value.cause.startswith("manifest.json: ")


def test_a_shard_without_an_example_is_refused() -> None:
    with pytest.raises(ManifestError, match="no examples, expected at least one"):
        manifest.parse(manifest.dump(make(splits={"train": Split(shards=(make_shard(num_examples=0),))})))


def test_filtered_rows_are_neither_used_nor_rejected() -> None:
    filtered = {"filtered": 3, "duplicate": 2, "held_out": 10, "not_held_out": 20}
    ledger = Ledger(rows_in=40, rows_used=4, rejected={"text_null": 1}, filtered=filtered)
    assert ledger.balanced
    assert (ledger.rows_rejected, ledger.rows_filtered, ledger.rows_in_other_splits) == (1, 35, 30)
    assert ledger.filtered_of_split == {"filtered": 3, "duplicate": 2}
    assert Ledger.total([ledger, ledger]).filtered == {reason: 2 * rows for reason, rows in filtered.items()}


@given(start=st.integers(0, 3000), length=st.integers(0, 20), put=st.binary(max_size=20))
def test_any_damage_to_the_bytes_parses_or_is_refused(start: int, length: int, put: bytes) -> None:
    text = manifest.dump(make())
    with contextlib.suppress(ManifestError):
        made = manifest.parse(text[:start] + put + text[start + length :])
        assert manifest.parse(manifest.dump(made)) == made


def generations(*, first: str = "ab", last: str = "0123", train: int = 1) -> tuple[Generation, ...]:
    return (
        Generation(fingerprint=first, tasks={"train": 1, "test": 1}, rows={"train": ((0, 6),), "test": ((0, 5),)}),
        Generation(fingerprint=last, tasks={"train": train}, rows={"train": ((6, 12),)}),
    )


def test_a_manifest_survives_the_round_trip() -> None:
    for made in (make(), make(generations=generations())):
        assert manifest.parse(manifest.dump(made)) == made
    assert b"generations" not in manifest.dump(make())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (generations(train=2), "split 'train' has 2 tasks, but its generations have 3"),
        (generations(last="cd"), "the last of them 0123"),
        (generations(first="0123"), "at least two different ones"),
        (generations()[1:], "at least two different ones"),
        ((generations()[0], dataclasses.replace(generations()[1], rows={"test": ((6, 12),)})), "of the same splits"),
    ],
)
def test_generations_that_contradict_the_shards_are_refused(wrong: tuple[Generation, ...], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        manifest.parse(manifest.dump(make(generations=wrong)))


def test_the_manifest_of_an_earlier_generation_is_named_by_its_path() -> None:
    named = {
        "out": ("out", "manifest.json"),
        "gs://b/out/": ("gs://b/out", "manifest.json"),
        "gs://b/out/manifest-0.json": ("gs://b/out", "manifest-0.json"),
        "manifest-12.json": (".", "manifest-12.json"),
        "/manifest-1.json": ("/", "manifest-1.json"),
        "out/manifest-x.json": ("out/manifest-x.json", "manifest.json"),
        "/": ("/", "manifest.json"),
    }
    assert {path: manifest.folder_and_name(path) for path in named} == named


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (json_fields.text, "half a pair: \ud800"),
        *((json_fields.count, value) for value in (True, 1.0, -1, 2**63)),
        *((json_fields.integer, value) for value in (True, -(2**63), 2**63)),
    ],
)
def test_a_field_that_could_not_be_written_again_is_refused(read: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(ValueError, match=r"surrogates not allowed|whole number"):
        read(value)
