"""docs/manifest.schema.json says the same as the parser and the writer, as far as a JSON Schema can say it.

written by us      every manifest validates, and every field that is written is in the schema, and the other way round
damaged            what the schema can see, it refuses as the parser does
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare import storage
from tests import building
from tests.building import REPOSITORY
from tests.tfrecord_io.format.test_manifest import JSON, document, places
from tfrecord_io import manifest
from tfrecord_io.errors import ManifestError
from tfrecord_io.manifest import LabelRange, Ledger, Manifest, Shard, Split, TokenizerFacts
from tfrecord_io.schema import OF_TOKENS, Feature, Schema

Document = dict[str, Any]

SCHEMA: Document = json.loads((REPOSITORY / "docs" / "manifest.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
# Plain JSON objects for people and tools: the parser takes any, the schema says what this library puts there.
SHARDS = "$.splits.*.shards[]"
OPTIONAL = {"$": {"sha256"}, "$.tokenizer": {"sentinel_ids"}}
# What only datasets with rows of several lengths have.
OF_BUCKETS = {"$.layout": {"bucket_lengths"}, SHARDS: {"length", "task"}}
# What is left out where it would be 0, what integer labels have, and datasets that were appended to.
OF_SOME = {SHARDS: {"num_unlabelled"}, "$.splits.*": {"labels"}, "$": {"generations"}}
OPEN = frozenset({"layout", "source", "options", "versions"})


def validates(content: Any) -> bool:
    return bool(VALIDATOR.is_valid(content))


def require_valid(content: Any) -> None:
    assert [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(content)] == []


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


# Manifests of real builds

ROWS = [{"a": f"word {row}", "b": "x y", "score": row / 4, "ids": [row, 1], "kind": row} for row in range(40)]
BUILDS: dict[str, dict[str, object]] = {
    "float label and kept columns": {"text_column": "a", "label_column": "score", "keep_column": ("ids", "kind")},
    "pair": {"text_column": ("a", "b")},
    "concat": {"text_column": "a", "layout": "concat", "remainder": "drop"},
    "gzip": {"text_column": "a", "compression": "gzip"},
    "buckets": {"text_column": "a", "max_length": None, "bucket_lengths": "8,16"},
    "rejected rows": {"text_column": "a", "label_column": "some", "max_error_rate": 0.5},
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits of forty rows, with something in them for every build."""
    made = [{**row, "some": None if index % 3 else "yes"} for index, row in enumerate(ROWS)]
    made[0]["some"], made[39]["some"] = "no", "yes"
    return building.source(tmp_path_factory.mktemp("rows") / "rows", train=made, test=made[::3])


def raw(root: Path) -> Document:
    content: Document = json.loads(storage.read_bytes(storage.join(str(root), manifest.FILE_NAME)))
    return content


def test_the_manifest_of_the_reviews_validates() -> None:
    content = raw(building.reviews())
    require_valid(content)
    assert content["label_names"]


QUICK = ("float label and kept columns",)


@pytest.mark.parametrize(
    "options",
    [pytest.param(BUILDS[name], id=name, marks=pytest.mark.slow if name not in QUICK else ()) for name in BUILDS],
)
def test_the_manifest_of_a_build_validates(rows: Path, options: dict[str, object]) -> None:
    content = raw(building.built(rows, **options))
    require_valid(content)
    assert content["splits"].keys() == {"train", "test"}
    assert bool(content["splits"]["train"]["ledger"]["rejected"]) == ("max_error_rate" in options)


# Every manifest that can be written

OTHER_IDS = ("eos_id", "bos_id", "cls_id", "sep_id", "mask_id", "unk_id")
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
COUNT = st.integers(0, 2**60)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,20}", fullmatch=True).filter(lambda name: name != "label")
FREE = st.dictionaries(TEXT, st.recursive(st.none() | st.booleans() | COUNT | TEXT, st.lists, max_leaves=4), max_size=3)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    used, rejected = draw(st.integers(1, 2**60)), draw(st.dictionaries(TEXT, COUNT, max_size=3))
    return Ledger(rows_in=used + sum(rejected.values()), rows_used=used, rejected=rejected, tokens_cut=draw(COUNT))


@st.composite
def splits(draw: st.DrawFn, *, name: str, compression: Any, layout: str) -> Split:
    shards = []
    for index, ledger in enumerate(draw(st.lists(ledgers(), max_size=3))):
        examples = ledger.rows_used if layout == "pad" else draw(st.integers(1, 2**60))
        shards.append(
            Shard(
                name=manifest.shard_name(name="n", split=name, index=index, count=3, compression=compression),
                num_bytes=draw(COUNT),
                num_examples=examples,
                num_tokens=draw(COUNT),
                sha256=draw(st.from_regex(r"[0-9a-f]{64}", fullmatch=True)),
                ledger=ledger,
                num_unlabelled=draw(COUNT),
            )
        )
    smallest, more = draw(st.integers(-(2**60), 2**60)), draw(COUNT)
    distinct = draw(st.none() | st.integers(1, more + 1))
    labels = LabelRange(smallest=smallest, largest=smallest + more, distinct=distinct)
    return Split(shards=tuple(shards), labels=draw(st.sampled_from([None, labels])))


@st.composite
def features(draw: st.DrawFn) -> Feature:
    dtype: Any = draw(st.sampled_from(["int64", "float32", "string", "bytes"]))
    is_number = dtype in ("int64", "float32")
    return Feature(
        name=draw(NAMES),
        dtype=dtype,
        shape=tuple(draw(st.lists(st.integers(1, 2**7), max_size=3 if is_number else 0))),
        role="column",
        meaning=draw(TEXT),
        constant=draw(st.none() | st.integers(-(2**63), 2**63 - 1)) if dtype == "int64" else None,
    )


def token_feature(role: Any, *, length: int) -> Feature:
    return Feature(name=f"_{role}", dtype="int64", shape=(length,), role=role)


@st.composite
def tokenizers(draw: st.DrawFn) -> TokenizerFacts:
    size = draw(st.integers(1, 2**31))
    ids = st.integers(0, size - 1)
    return TokenizerFacts(
        name=draw(TEXT),
        kind=draw(TEXT),
        vocab_size=size,
        content_sha256=draw(st.from_regex(r"[0-9a-f]{64}", fullmatch=True)),
        special_ids=tuple(draw(st.lists(ids, max_size=4))),
        padding_side=draw(st.sampled_from(["left", "right"])),
        pad_id=draw(ids),
        sentinel_ids=tuple(draw(st.lists(ids, max_size=4))),
        **{name: draw(st.none() | ids) for name in OTHER_IDS},
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    compression: Any = draw(st.sampled_from(["none", "gzip"]))
    layout = draw(st.sampled_from(["pad", "concat"]))
    roles = draw(st.lists(st.sampled_from([role for role in OF_TOKENS if role != "token_ids"]), unique=True))
    length = draw(st.integers(1, 2**17))
    made = [token_feature(role, length=length) for role in ("token_ids", *roles)]
    made += draw(st.lists(features(), max_size=4, unique_by=lambda feature: feature.name))
    label = draw(st.sampled_from([None, Feature(name="label", dtype="float32", shape=(), role="label")]))
    names = draw(st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), max_size=3, unique=True))
    return Manifest(
        name=draw(NAMES),
        fingerprint=draw(st.from_regex(r"[0-9a-f]{1,128}", fullmatch=True)),
        schema=Schema((*made, *([label] if label else []))),
        layout={**draw(FREE), "name": layout, "max_length": draw(st.integers(1, 2**31))},
        tokenizer=draw(tokenizers()),
        splits={name: draw(splits(name=name, compression=compression, layout=layout)) for name in names},
        label_names=tuple(draw(st.lists(TEXT, max_size=3))) if label and draw(st.booleans()) else None,
        compression=compression,
        index_stride=None if compression == "gzip" else draw(st.none() | st.integers(1, 2**20)),
        source={**draw(FREE), "splits": {name: [[0, draw(st.integers(1, 2**60))]] for name in names}},
        options=draw(FREE),
        versions=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(manifests())
def test_every_manifest_that_can_be_written_validates(made: Manifest) -> None:
    text = manifest.dump(made)
    assert manifest.parse(text) == made
    require_valid(json.loads(text))


@settings(deadline=None, max_examples=150)
@given(
    path=st.sampled_from([path for path in places(document()) if path[0] not in OPEN]),
    value=JSON | st.sampled_from([0, 1, -1, "", [], {}, None, True, 1.5]),
)
def test_the_schema_is_not_stricter_than_the_parser(path: tuple[Any, ...], value: Any) -> None:
    content = changed(document(), path, value)
    try:
        found = manifest.parse(json.dumps(content))
    except ManifestError:
        return
    require_valid(json.loads(manifest.dump(found)))


def test_what_a_newer_minor_version_adds_is_allowed_everywhere() -> None:
    content = document(format_version="1.7")
    for place in objects_of(content):
        place["something_new"] = "1"
    # These objects name splits and count rows: what is added there is a split or a reason.
    del content["splits"]["something_new"]
    for split in content["splits"].values():
        for ledger in (split["ledger"], *(shard["ledger"] for shard in split["shards"])):
            del ledger["rejected"]["something_new"]
    del content["source"]["splits"]["something_new"]
    manifest.parse(json.dumps(content))
    require_valid(content)


# Damage

SHARD = ("splits", "train", "shards", 0)
LEDGER = ("splits", "train", "ledger")
GONE = object()


def at(*path: Any, to: Sequence[Any]) -> list[tuple[tuple[Any, ...], Any]]:
    """One change for each value."""
    return [(path, value) for value in to]


def without(*path: Any, fields: Iterable[str]) -> list[tuple[tuple[Any, ...], Any]]:
    """One change for each field that is left out."""
    return [((*path, field), GONE) for field in sorted(fields)]


NO_COUNT = (-1, True, "1", None, 1.5, 2**63)
DAMAGE = [
    *without(fields=document()),
    *without("tokenizer", fields=document()["tokenizer"].keys() - {"sentinel_ids"}),
    *without("features", 0, fields=("name", "dtype", "shape", "role", "meaning")),
    *without("splits", "train", fields=document()["splits"]["train"]),
    *without(*SHARD, fields=document()["splits"]["train"]["shards"][0]),
    *without(*LEDGER, fields=document()["splits"]["train"]["ledger"]),
    *at("format", to=("other", "", None, 1)),
    *at("format_version", to=("2.0", "0.9", "10.0", "1", "1.", "1.0\n", "v1.0", "1.0.0", 1.0, None)),
    *at("name", to=(None, 1, [], "", "../x", "a/b", ".x", "x\n", "x" * 256)),
    *at("fingerprint", to=(None, 5, "", "../..", "0123/..", "AB", "0" * 129, "01\n")),
    *at("features", to=([], None, 3, [5], [None])),
    *at("features", 0, "name", to=("", "1a", "a b", "é", "a\n", "x" * 129, None)),
    *at("features", 0, "dtype", to=("int32", "", None, 1, "string", "bytes")),
    *at("features", 0, "role", to=("ids", None)),
    *at("features", 0, "shape", to=([0], [-1], [1.5], ["8"], [True], "8", None, 8, [2**24 + 1], [1] * 9)),
    *at("features", 0, "meaning", to=(5, None)),
    *at("features", 1, "constant", to=(0.5, "0", True, [], 2**63, -(2**63) - 1)),
    *at("label_names", to=(["no", 1], 5, [None])),
    *at("layout", to=(None, 1, "pad")),
    *at("layout", "bucket_lengths", to=([], [0], [True], ["8"], None, 8, [8, 8])),
    *at(*SHARD, "length", to=(*NO_COUNT, 0, 8)),
    *at(*SHARD, "task", to=(*NO_COUNT, 0)),
    *at(*SHARD, "num_unlabelled", to=NO_COUNT),
    *at("tokenizer", to=(None, [], "tok")),
    *at("tokenizer", "vocab_size", to=(*NO_COUNT, 0, 2**31 + 1)),
    *at("tokenizer", "content_sha256", to=("", "../x", "cd" * 31, "CD" * 32)),
    *at("tokenizer", "special_ids", to=([-1], ["1"], [None], None, 5)),
    *at("tokenizer", "sentinel_ids", to=([-1], ["1"], [None], None, 5)),
    *at("tokenizer", "padding_side", to=("both", None)),
    *at("tokenizer", "pad_id", to=NO_COUNT),
    *(change for name in OTHER_IDS for change in at("tokenizer", name, to=(-1, "1", True))),
    *(change for name in ("name", "kind", "content_sha256") for change in at("tokenizer", name, to=(None, 1))),
    *at("compression", to=("zip", None, "gzip")),
    *at("index_stride", to=(0, -1, "16", True, 1.5)),
    *(((name,), None) for name in ("source", "options", "versions", "splits")),
    *at("splits", to=([], "train", 5, *({name: document()["splits"]["train"]} for name in ("", "../x", "a/b", "..")))),
    *at("splits", "train", to=(None, [], 5)),
    *at("splits", "train", "num_bytes", to=NO_COUNT),
    *at("splits", "train", "labels", to=([], 5, {}, {"smallest": 0})),
    *at(
        "splits", "train", "labels", to=({"smallest": 0.5, "largest": 1}, {"smallest": 0, "largest": 1, "distinct": 0})
    ),
    *at("splits", "train", "shards", to=(None, 5, [None])),
    *at(*SHARD, "name", to=("../x.tfrecord", "a/x.tfrecord", ".x.tfrecord", "x.tfrecord\n", "x.tfrecord.gz", "", None)),
    *at(*SHARD, "sha256", to=("AB" * 32, "ab" * 31, "ab" * 32 + "\n", "", None)),
    *at(*SHARD, "num_examples", to=(*NO_COUNT, 0)),
    *at(*SHARD, "num_tokens", to=NO_COUNT),
    *at(*SHARD, "ledger", to=(None, [], 5)),
    *at(*LEDGER, "rejected", to=(None, 3, {"text_null": -3}, {"text_null": "3"}, {"text_null": 1.5})),
    *at(*LEDGER, "tokens_cut", to=NO_COUNT),
]


def changed(content: Document, path: tuple[Any, ...], value: Any) -> Document:
    """`content` with another value at `path`, or without it."""
    content = copy.deepcopy(content)
    place = functools.reduce(lambda inner, key: inner[key], path[:-1], content)
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


@pytest.mark.parametrize(("path", "value"), DAMAGE)
def test_what_the_parser_refuses_the_schema_refuses(path: tuple[Any, ...], value: Any) -> None:
    content = changed(document(), path, value)
    with pytest.raises(ManifestError):
        manifest.parse(json.dumps(content))
    assert not validates(content)


GENERATIONS = [
    {"fingerprint": "ab", "tasks": {"test": 1, "train": 1}, "rows": {"test": [[0, 5]], "train": [[0, 5]]}},
    {"fingerprint": document()["fingerprint"], "tasks": {"train": 1}, "rows": {"train": [[5, 9], [20, 21]]}},
]
OF_GENERATIONS = [
    *at("generations", to=(None, 5, "x", [5], [None])),
    *without("generations", 0, fields=GENERATIONS[0]),
    *at("generations", 0, "fingerprint", to=(None, 5, "", "../..", "AB")),
    *at("generations", 0, "tasks", to=(None, [], {"../x": 1}, {"train": 0}, {"train": "1"}, {"train": True})),
    *at("generations", 0, "rows", to=(None, [], {"../x": [[0, 1]]}, {"train": []}, {"train": [[0]]}, {"train": 5})),
]


def test_generations_validate() -> None:
    content = document(generations=GENERATIONS)
    manifest.parse(json.dumps(content))
    require_valid(content)


@pytest.mark.parametrize(("path", "value"), OF_GENERATIONS)
def test_damaged_generations_are_refused_by_both(path: tuple[Any, ...], value: Any) -> None:
    content = changed(document(generations=GENERATIONS), path, value)
    with pytest.raises(ManifestError):
        manifest.parse(json.dumps(content))
    assert not validates(content)


def test_an_index_of_compressed_shards_is_refused_by_both(rows: Path) -> None:
    content = raw(building.built(rows, **BUILDS["gzip"]))
    content["index_stride"] = 16
    with pytest.raises(ManifestError, match="no index of compressed shards"):
        manifest.parse(json.dumps(content))
    assert not validates(content)


def test_a_constant_of_a_float_feature_is_refused_by_both() -> None:
    content = changed(document(), ("features", 1, "dtype"), "float32")
    with pytest.raises(ManifestError, match="expected an integer of an int64 feature"):
        manifest.parse(json.dumps(content))
    assert not validates(content)


# Neither may drift from the other


def objects_of(content: Any) -> Iterator[Document]:
    """Every object in a JSON document, itself among them; in `options` and `versions` only the outermost."""
    if isinstance(content, dict):
        yield content
        for key, value in content.items():
            if key not in ("options", "versions"):
                yield from objects_of(value)
            else:
                yield value
    elif isinstance(content, list):
        for value in content:
            yield from objects_of(value)


def described(schema: Mapping[str, Any], content: Any, path: str) -> Iterator[tuple[str, Document, set[str]]]:
    """(path, the schema of an object, the keys that were written there) for every object that has named fields."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(content, list):
        for value in content:
            yield from described(schema.get("items", {}), value, f"{path}[]")
    if isinstance(content, dict) and (named := schema.get("properties", {})):
        yield path, dict(schema), set(content)
        for key, value in content.items():
            yield from described(named.get(key, {}), value, f"{path}.{key}")
    elif isinstance(content, dict):
        for value in content.values():
            yield from described(schema.get("additionalProperties", {}), value, f"{path}.*")


@pytest.mark.parametrize("bucketed", [False, True])
def test_every_field_that_is_written_is_in_the_schema_and_the_other_way_round(rows: Path, bucketed: bool) -> None:
    seen = set()
    content = raw(building.built(rows, **BUILDS["buckets"]) if bucketed else building.reviews())
    for path, schema, written in described(SCHEMA, content, "$"):
        named, needed = set(schema["properties"]) - OF_SOME.get(path, set()), set(schema.get("required", ()))
        seen.add(path)
        if path == "$.source":  # what else it holds depends on the kind of source
            assert named - {"origins"} <= written  # where a split has the name of the source's, its origin is not named
        else:
            special = OF_BUCKETS.get(path, set())
            assert written == (named if bucketed else named - special), path
            assert needed == named - OPTIONAL.get(path, set()) - special, path
    assert seen == {
        *("$", "$.features[]", "$.layout", "$.tokenizer", "$.source"),
        *("$.splits.*", "$.splits.*.ledger", SHARDS, f"{SHARDS}.ledger"),
    }


def test_every_field_is_described() -> None:
    for schema in [SCHEMA, *SCHEMA["$defs"].values()]:
        for name, field in schema.get("properties", {}).items():
            described_by = SCHEMA["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else field
            assert {**described_by, **field}.get("description"), name


def test_the_page_on_the_format_has_a_table_of_the_same_fields() -> None:
    page = (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    section = page.partition("\n## manifest.json")[2].partition("\n## ")[0]
    table = section.partition("\n\nA **feature**")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(SCHEMA["properties"])


@pytest.mark.parametrize("name", ["feature", "tokenizer", "split", "shard", "ledger"])
def test_the_page_on_the_format_names_every_inner_field(name: str) -> None:
    page = (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    assert [field for field in SCHEMA["$defs"][name]["properties"] if f"`{field}`" not in page] == []
