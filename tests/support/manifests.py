"""Manifests and shards for tests, and every place in their JSON."""

import json
from typing import Any

from hypothesis import strategies as st

from tfrecord_io import manifest
from tfrecord_io.manifest import Ledger, Manifest, Shard, Split, TokenizerFacts
from tfrecord_io.schema import Feature, Schema

Document = dict[str, Any]


def make_shard(name: str = "tiny-train-00000-of-00002.tfrecord", **changes: Any) -> Shard:
    fields: dict[str, Any] = {"num_bytes": 100, "num_examples": 5, "num_tokens": 40, "sha256": "ab" * 32}
    fields["ledger"] = Ledger(rows_in=5, rows_used=5)
    return Shard(name=name, **{**fields, **changes})


def make(**changes: Any) -> Manifest:
    """A small manifest with something in every field."""
    rejected = Ledger(rows_in=6, rows_used=5, rejected={"text_null": 1}, tokens_cut=3)
    more = Ledger(rows_in=6, rows_used=4, rejected={"text_null": 2}, tokens_cut=4)
    second = make_shard("tiny-train-00001-of-00002.tfrecord", num_examples=4, ledger=more)
    features = (
        Feature(name="input_ids", dtype="int64", shape=(8,), role="token_ids", meaning="ids, é"),
        Feature(name="types", dtype="int64", shape=(8,), role="token_type_ids", constant=0),
        Feature(name="label", dtype="int64", shape=(), role="label"),
    )
    facts: dict[str, Any] = {"name": "tok", "kind": "Fast", "vocab_size": 100, "content_sha256": "cd" * 32, "sep_id": 1}
    facts |= {"special_ids": (0, 1, 99), "padding_side": "right", "pad_id": 0}
    test = Split(shards=(make_shard("tiny-test-00000-of-00001.tfrecord"),))
    fields: dict[str, Any] = {"name": "tiny", "fingerprint": "0123", "schema": Schema(features)}
    fields |= {"tokenizer": TokenizerFacts(**facts), "label_names": ("no", "yes", "ünsure\n")}
    fields["splits"] = {"train": Split(shards=(make_shard(ledger=rejected), second)), "test": test}
    fields |= {"layout": {"name": "pad", "max_length": 8, "one_record": True}, "versions": {"prep-tfrecords": "0.1.0"}}
    fields["source"] = {"kind": "json", "splits": {"train": [[0, 12]]}}
    fields["options"] = {"seed": 0, "nested": {"deep": [None, 1.5, "日本"]}}
    return Manifest(**{**fields, **changes})


def document(**changes: Any) -> Document:
    """The JSON of `make()`, without the digest of its text, so that tests may change it."""
    content = json.loads(manifest.dump(make()))
    del content["sha256"]
    return {**content, **changes}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def places(content: Any) -> list[tuple[Any, ...]]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path for key, value in items for path in [(key,), *((key, *rest) for rest in places(value))]]
