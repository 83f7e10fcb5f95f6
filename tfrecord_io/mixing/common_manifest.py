"""Merge the manifests of datasets that can share a batch.

The datasets need the same tokenizer, and features with the same names, dtypes, shapes and roles. All else may differ.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest, Split, TokenizerFacts
from tfrecord_io.schema import ROLES, Feature, Schema

if TYPE_CHECKING:
    from tfrecord_io.objectives import BoundObjective, Objective


def merge(manifests: Mapping[str, Manifest], *, rates: Mapping[str, Any]) -> Manifest:
    """Return one manifest for several datasets. `rates`: JSON that its fingerprint also covers.

    It has the features of the first dataset, and the splits that all datasets have.

    Raises: ReaderError if the datasets' tokenizers or features differ.
    """
    (first_name, first), *others = manifests.items()
    for name, manifest in others:
        _check_tokenizer(manifest.tokenizer, first.tokenizer, name=name, first_name=first_name)
        _check_features(manifest.schema, first.schema, name=name, first_name=first_name)
    same_names = all(manifest.label_names == first.label_names for _, manifest in others)
    same_layout = all(manifest.layout == first.layout for _, manifest in others)
    parts = [[name, manifest.fingerprint] for name, manifest in manifests.items()]
    features = []
    for feature in first.schema.features:
        is_same = all(manifest.schema[feature.name].constant == feature.constant for _, manifest in others)
        features.append(feature if is_same else dataclasses.replace(feature, constant=None))
    splits = {
        name: Split(shards=tuple(shard for manifest in manifests.values() for shard in manifest.splits[name].shards))
        for name in first.splits
        if all(name in manifest.splits for _, manifest in others)
    }
    return Manifest(
        name="+".join(manifests),
        fingerprint=hashlib.sha256(json.dumps([parts, rates], sort_keys=True).encode()).hexdigest(),
        schema=Schema(tuple(features)),
        layout=first.layout if same_layout else {"name": "mixture", "max_length": first.layout.get("max_length", 0)},
        tokenizer=first.tokenizer,
        splits=splits,
        label_names=first.label_names if same_names else None,
    )


def bind(objective: Objective, merged: Manifest, *, manifests: Mapping[str, Manifest]) -> BoundObjective:
    """Bind an objective to a mixture of datasets with these `manifests` and the `merged` one.

    Raises: ReaderError if it does not fit, or learns labels with different names.
    """
    bound = objective.bind(merged)
    (first_name, first), *others = manifests.items()
    for name, manifest in others:
        if manifest.label_names != first.label_names and _needs_labels(objective, merged):
            both = manifest.label_names, first.label_names
            names, first_names = ("without names" if labels is None else list(labels[:10]) for labels in both)
            raise ReaderError(
                f"the labels of dataset {name!r} are {names}, the labels of {first_name!r} are {first_names}, "
                "expected the same names in the same order, so that a label has one meaning",
                remedy="build them with the same label names, or choose an objective that learns no labels",
            )
    return bound


def _needs_labels(objective: Objective, manifest: Manifest) -> bool:
    # An objective that learns labels would not fit if the labels were ordinary columns.
    features = tuple(
        dataclasses.replace(feature, role="column") if ROLES[feature.role].is_label else feature
        for feature in manifest.schema.features
    )
    try:
        objective.bind(dataclasses.replace(manifest, schema=Schema(features), label_names=None))
    except ReaderError:
        return True
    return False


def _check_tokenizer(facts: TokenizerFacts, expected: TokenizerFacts, *, name: str, first_name: str) -> None:
    if facts.content_sha256 != expected.content_sha256:
        raise ReaderError(
            f"dataset {name!r} was tokenized by {facts.name!r} (content {facts.content_sha256[:12]}), dataset "
            f"{first_name!r} by {expected.name!r} (content {expected.content_sha256[:12]}), expected the same "
            "tokenizer, so that an id has one meaning",
            remedy="build both with the same revision of one --tokenizer",
        )
    for field in ("pad_id", "padding_side"):
        if (got := getattr(facts, field)) != (wanted := getattr(expected, field)):
            raise ReaderError(
                f"dataset {name!r} has {field} {got!r}, dataset {first_name!r} has {wanted!r}, expected the same",
                remedy="build both with the same options",
            )


def _check_features(schema: Schema, expected: Schema, *, name: str, first_name: str) -> None:
    ours, theirs = ({feature.name: feature for feature in of.features} for of in (schema, expected))
    for feature in (*schema.features, *expected.features):
        if (got := _describe(ours.get(feature.name))) != (wanted := _describe(theirs.get(feature.name))):
            raise ReaderError(
                f"feature {feature.name!r} of dataset {name!r} is {got}, but {wanted} in dataset {first_name!r}, "
                "expected the same in both",
                remedy=_remedy(feature),
            )


def _describe(feature: Feature | None) -> str:
    return f"{feature.dtype} {list(feature.shape)} of role {feature.role!r}" if feature else "missing"


def _remedy(feature: Feature) -> str:
    if ROLES[feature.role].is_label:
        return "build all datasets with labels of the same kind, or all without labels"
    if feature.role == "column":
        return "build all datasets with the same --keep-column options"
    return "build all datasets with the same --layout and --max-length, and all with or all without a second text"
