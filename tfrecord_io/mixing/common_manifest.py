"""Merge the manifests of datasets that can share a batch.

They need the same tokenizer and the same features: names, dtypes, shapes and roles. Source, size, storage and the
descriptions and order of features may differ. So may constants (read from the records, unless all datasets share them)
and the names of the labels, as long as no objective learns the labels.
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
    """Return one manifest for the records of all datasets; its fingerprint covers `rates`, plain JSON, too.

    It has the features of the first dataset, and the splits that all datasets have, each with the shards of all.

    Raises: ReaderError if the datasets do not fit together.
    """
    (first_name, first), *others = manifests.items()
    for name, manifest in others:
        _check_tokenizer(manifest.tokenizer, first.tokenizer, name=name, first_name=first_name)
        _check_features(manifest.schema, first.schema, name=name, first_name=first_name)
    same_names = all(manifest.label_names == first.label_names for _, manifest in others)
    same_layout = all(manifest.layout == first.layout for _, manifest in others)
    parts = [[name, manifest.fingerprint] for name, manifest in manifests.items()]
    features = tuple(
        feature
        if all(manifest.schema[feature.name].constant == feature.constant for _, manifest in others)
        else dataclasses.replace(feature, constant=None)
        for feature in first.schema.features
    )
    splits = {
        name: Split(shards=tuple(shard for each in manifests.values() for shard in each.splits[name].shards))
        for name in first.splits
        if all(name in manifest.splits for _, manifest in others)
    }
    return Manifest(
        name="+".join(manifests),
        fingerprint=hashlib.sha256(json.dumps([parts, rates], sort_keys=True).encode()).hexdigest(),
        schema=Schema(features),
        layout=first.layout if same_layout else {"name": "mixture", "max_length": first.layout.get("max_length", 0)},
        tokenizer=first.tokenizer,
        splits=splits,
        label_names=first.label_names if same_names else None,
    )


def bind(objective: Objective, merged: Manifest, *, manifests: Mapping[str, Manifest]) -> BoundObjective:
    """Bind the objective to the merged dataset.

    Raises: ReaderError if it does not fit, or learns labels that the datasets name differently.
    """
    bound = objective.bind(merged)
    (first_name, first), *others = manifests.items()
    for name, manifest in others:
        if manifest.label_names != first.label_names and _needs_labels(objective, merged):
            listings = [
                "without names" if each.label_names is None else str(list(each.label_names[:10]))
                for each in (manifest, first)
            ]
            raise ReaderError(
                f"the labels of dataset {name!r} are {listings[0]}, those of {first_name!r} are {listings[1]}, "
                "expected the same names in the same order: label 0 would mean both",
                remedy="build them with the same label names, or choose an objective that learns no labels",
            )
    return bound


def _needs_labels(objective: Objective, manifest: Manifest) -> bool:
    """Return whether an objective would not fit if the labels were ordinary columns."""
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
            "tokenizer: the same id would mean different tokens",
            remedy="build both with the same --tokenizer, of the same revision",
        )
    for field in ("pad_id", "padding_side"):
        if (got := getattr(facts, field)) != (wanted := getattr(expected, field)):
            raise ReaderError(
                f"dataset {name!r} has {field} {got!r}, dataset {first_name!r} has {wanted!r}, expected the same",
                remedy="build both with the same options",
            )


def _check_features(schema: Schema, expected: Schema, *, name: str, first_name: str) -> None:
    ours, theirs = ({feature.name: feature for feature in each.features} for each in (schema, expected))
    for feature in (*schema.features, *expected.features):
        if (got := _describe(ours.get(feature.name))) != (wanted := _describe(theirs.get(feature.name))):
            raise ReaderError(
                f"feature {feature.name!r} of dataset {name!r} is {got}, that of dataset {first_name!r} is {wanted}, "
                "expected the same",
                remedy=_remedy(feature),
            )


def _describe(feature: Feature | None) -> str:
    return f"{feature.dtype} {list(feature.shape)} of role {feature.role!r}" if feature else "not there"


def _remedy(feature: Feature) -> str:
    if ROLES[feature.role].is_label:
        return "build all of them with labels, of the same kind, or all without"
    if feature.role == "column":
        return "build all of them with the same --keep-column options, or none"
    return "build all of them with the same --layout and --max-length, and with or without a second text"
