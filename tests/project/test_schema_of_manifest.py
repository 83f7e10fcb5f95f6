"""docs/manifest.schema.json agrees with the parser, as far as a JSON Schema can express it.

real manifests     validate, and every written field is in the schema and on the page
damaged            the schema refuses the same damage as the parser, if it can express the rule
"""

import copy
import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import building
from tests.building import REPOSITORY
from tests.support.manifests import JSON, document, places
from tfrecord_io import manifest
from tfrecord_io.errors import ManifestError
from tfrecord_io.schema import ROLES, DType, Role

Document = dict[str, Any]
Place = tuple[Any, ...]

SCHEMA: Document = json.loads((REPOSITORY / "docs" / "manifest.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
PAGE_NAME = "docs/format.md"
PAGE = (REPOSITORY / PAGE_NAME).read_text(encoding="utf-8")
# Plain JSON objects for people and tools: the parser takes any, the schema says what this library puts there.
CONDITIONS = {"if", "then", "else", "not", "allOf", "anyOf", "oneOf"}
OPEN = frozenset({"layout", "source", "options", "versions"})

ROWS = [{"a": f"word {row}", "b": "x y", "score": row / 4, "ids": [row, 1], "kind": row} for row in range(40)]
BUILDS: dict[str, dict[str, object]] = {
    "float label and kept columns": {"text_column": "a", "label_column": "score", "keep_column": ("ids", "kind")},
    "pair": {"text_column": ("a", "b")},
    "concat": {"text_column": "a", "layout": "concat", "remainder": "drop"},
    "gzip": {"text_column": "a", "compression": "gzip"},
    "buckets": {"text_column": "a", "max_length": None, "bucket_lengths": "8,16"},
    "rejected rows": {"text_column": "a", "label_column": "some", "max_error_rate": 0.5},
}
GENERATIONS = [
    {"fingerprint": "ab", "tasks": {"test": 1, "train": 1}, "rows": {"test": [[0, 5]], "train": [[0, 5]]}},
    {"fingerprint": document()["fingerprint"], "tasks": {"train": 1}, "rows": {"train": [[5, 9], [20, 21]]}},
]


def validates(content: Any) -> bool:
    return bool(VALIDATOR.is_valid(content))


def require_valid(content: Any, validator: Any = VALIDATOR) -> None:
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)] == []


def strict(schema: Any) -> Any:
    """The schema without fields that it does not name, where it names some; its conditions stay as they are."""
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    inner = {name: value if name in CONDITIONS else strict(value) for name, value in schema.items()}
    return {**closed, **inner}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits of forty rows, with something in them for every build."""
    made = [{**row, "some": None if index % 3 else "yes"} for index, row in enumerate(ROWS)]
    made[0]["some"], made[39]["some"] = "no", "yes"
    return building.source(tmp_path_factory.mktemp("rows") / "rows", train=made, test=made[::3])


@pytest.mark.parametrize("name", ["reviews", *BUILDS])
def test_the_manifest_of_a_build_validates_and_has_no_field_that_the_schema_lacks(rows: Path, name: str) -> None:
    root = building.reviews() if name == "reviews" else building.built(rows, **BUILDS[name])
    content = json.loads((root / manifest.FILE_NAME).read_bytes())
    schema = strict(SCHEMA)
    # What else these hold depends on the kind of source, and on the options.
    for field in OPEN & schema["properties"].keys():
        schema["properties"][field].pop("additionalProperties", None)
    require_valid(content, jsonschema.Draft202012Validator(schema))
    if name == "gzip":
        content["index_stride"] = 16
        with pytest.raises(ManifestError, match="or null for compressed shards"):
            manifest.parse(json.dumps(content))
        assert not validates(content)


@given(
    path=st.sampled_from([path for path in places(document()) if path[0] not in OPEN]),
    value=JSON | st.sampled_from([0, 1, -1, "", [], {}, None, True, 1.5]),
)
def test_the_schema_is_not_stricter_than_the_parser(path: Place, value: Any) -> None:
    try:
        parsed = manifest.parse(json.dumps(changed(document(), path, value)))
    except ManifestError:
        return
    require_valid(json.loads(manifest.dump(parsed)))


def test_what_a_newer_minor_version_adds_is_allowed_everywhere() -> None:
    content = document(format_version="1.7")
    for place in objects_of(content):
        place["something_new"] = "1"
    # These objects name splits and count rows: a new key is a split or a reason.
    del content["splits"]["something_new"]
    for split in content["splits"].values():
        for ledger in (split["ledger"], split["shards"]):
            del ledger["rejected"]["something_new"], ledger["filtered"]["something_new"]
    del content["source"]["splits"]["something_new"]
    manifest.parse(json.dumps(content))
    require_valid(content)


def objects_of(content: Any) -> Iterator[Document]:
    """Every object in a JSON document, itself among them; in `options` and `versions` only the outermost."""
    if isinstance(content, dict):
        yield content
        for key, value in content.items():
            yield from objects_of(value) if key not in ("options", "versions") else [value]
    elif isinstance(content, list):
        for value in content:
            yield from objects_of(value)


# Damage

SHARDS = ("splits", "train", "shards")
LEDGER = ("splits", "train", "ledger")
GONE = object()


def at(*path: Any, to: Sequence[Any]) -> list[tuple[Place, Any]]:
    return [(path, value) for value in to]


def without(*path: Any, fields: Iterable[str]) -> list[tuple[Place, Any]]:
    return [((*path, field), GONE) for field in sorted(fields)]


NO_COUNT = (-1, True, "1", None, 1.5, 2**63)
DAMAGE = [
    *without(fields=document()),
    *without("tokenizer", fields=document()["tokenizer"]),
    *without("features", 0, fields=("name", "dtype", "shape", "role", "meaning")),
    *without("splits", "train", fields=document()["splits"]["train"]),
    *without(*SHARDS, fields=document()["splits"]["train"]["shards"]),
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
    *at("features", 1, "constant", to=(0.5, "0", True, [], 2**63, -(2**63) - 1)),
    *at("layout", to=(None, 1, "pad")),
    *at("layout", "bucket_lengths", to=([], [0], [True], ["8"], None, 8, [8, 8])),
    *at(*SHARDS, "num_unlabelled", to=[[count, 0] for count in NO_COUNT]),
    *at("tokenizer", to=(None, [], "tok")),
    *at("tokenizer", "vocab_size", to=(*NO_COUNT, 0, 2**31 + 1)),
    *at("tokenizer", "content_sha256", to=("", "../x", "cd" * 31, "CD" * 32)),
    *at("tokenizer", "padding_side", to=("both", None)),
    *at("compression", to=("zip", None, "gzip")),
    *at("index_stride", to=(0, -1, "16", True, 1.5)),
    *(((name,), None) for name in ("source", "options", "versions", "splits")),
    *at("splits", to=([], "train", 5, *({name: document()["splits"]["train"]} for name in ("", "../x", "a/b", "..")))),
    *at("splits", "train", "labels", to=([], 5, {}, {"smallest": 0})),
    *at(
        "splits", "train", "labels", to=({"smallest": 0.5, "largest": 1}, {"smallest": 0, "largest": 1, "distinct": 0})
    ),
    *at("splits", "train", "shards", to=(None, 5, [], [None])),
    *at(
        *SHARDS,
        "name",
        0,
        to=("../x.tfrecord", "a/x.tfrecord", ".x.tfrecord", "x.tfrecord\n", "x.tfrecord.gz", "", None),
    ),
    *at(*SHARDS, "sha256", 0, to=("AB" * 32, "ab" * 31, "ab" * 32 + "\n", "", None)),
    *at(*SHARDS, "num_examples", 0, to=(*NO_COUNT, 0)),
    *(
        change
        for kind in ("rejected", "filtered")
        for change in (
            *at(*SHARDS, kind, to=(None, [], 5, {"some_reason": 5}, {"some_reason": [-1, 4]})),
            *at(*LEDGER, kind, to=(None, 3, {"some_reason": -3}, {"some_reason": "3"}, {"some_reason": 1.5})),
        )
    ),
    *at("generations", to=(None, 5, "x", [5], [None])),
    *without("generations", 0, fields=("fingerprint", "tasks", "rows")),
    *at("generations", 0, "tasks", to=(None, [], {"../x": 1}, {"train": 0}, {"train": "1"}, {"train": True})),
    *at("generations", 0, "rows", to=(None, [], {"../x": [[0, 1]]}, {"train": []}, {"train": [[0]]}, {"train": 5})),
]


def changed(content: Document, path: Place, value: Any) -> Document:
    content = copy.deepcopy(content)
    place = functools.reduce(lambda inner, key: inner[key], path[:-1], content)
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


@pytest.mark.parametrize(("path", "value"), DAMAGE)
def test_what_the_parser_refuses_the_schema_refuses(path: Place, value: Any) -> None:
    content = changed(document(generations=GENERATIONS), path, value)
    with pytest.raises(ManifestError):
        manifest.parse(json.dumps(content))
    assert not validates(content)


def test_what_the_damage_was_done_to_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    manifest.parse(json.dumps(document(generations=GENERATIONS)))
    require_valid(document(generations=GENERATIONS))


def test_a_constant_of_a_float_feature_is_refused_by_both() -> None:
    content = changed(document(), ("features", 1, "dtype"), "float32")
    with pytest.raises(ManifestError, match="expected an int64 value, and dtype int64"):
        manifest.parse(json.dumps(content))
    assert not validates(content)


# The page


def test_roles_and_dtypes_are_those_of_the_code() -> None:
    assert tuple(ROLES) == get_args(Role)
    feature = SCHEMA["$defs"]["feature"]["properties"]
    enums = {name: feature[name]["enum"] for name in ("role", "dtype")}
    assert enums == {"role": list(ROLES), "dtype": list(get_args(DType))}, "docs/manifest.schema.json"
    padding = {None: "", "pad": "the pad id", 0: "0"}
    cells = [
        (f"`{role}`", ", ".join(spec.dtypes), spec.shape, padding[spec.padding], spec.meaning)
        for role, spec in ROLES.items()
    ]
    assert [row for row in (f"| {' | '.join(texts)} |" for texts in cells) if f"\n{row}\n" not in PAGE] == [], PAGE_NAME


def test_every_field_is_described_and_on_the_page() -> None:
    for schema in [SCHEMA, *SCHEMA["$defs"].values()]:
        for name, field in schema.get("properties", {}).items():
            described_by = SCHEMA["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else field
            assert {**described_by, **field}.get("description"), name
    table = PAGE.partition("\n## manifest.json")[2].partition("\n## ")[0].partition("\n\nA **feature**")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(SCHEMA["properties"])
    for inner in ("feature", "tokenizer", "split", "shards", "ledger"):
        assert [field for field in SCHEMA["$defs"][inner]["properties"] if f"`{field}`" not in PAGE] == []
