"""TFDS metadata files, so that `tfds.builder_from_directory(OUT)` opens the dataset without this library.

The formats are TFDS's: a DatasetInfo message (core/proto/dataset_info.proto) and the JSON of a FeaturesDict
(core/proto/feature.proto), where 64-bit numbers are strings.

Three kinds of datasets get no such files: with gzip, because TFDS would report damage; with records of several lengths,
because they have no common shape; after an append, because TFDS expects the same number of shards in all file names.
"""

import json
from typing import Any

from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Feature

NAMES = ("dataset_info.json", "features.json", "label.labels.txt", "tags.labels.txt")


def files(manifest: Manifest, *, file_format: str = "tfrecord") -> dict[str, bytes]:
    """Return the content of each TFDS metadata file by file name; empty if TFDS cannot read the dataset.

    `file_format`: TFDS's name for the format of the shards (`core/file_adapters.py`).
    """
    if manifest.compression != "none" or manifest.bucket_lengths or manifest.generations:
        return {}
    info = {
        "name": manifest.name,
        "version": "1.0.0",
        "fileFormat": file_format,
        "description": f"{manifest.layout.get('name')} rows of {manifest.row_length} tokens, made by prep-tfrecords",
        "splits": [
            {
                "name": name,
                "shardLengths": [str(shard.num_examples) for shard in split.shards],
                "numBytes": str(split.num_bytes),
                "filepathTemplate": "{DATASET}-{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
            }
            for name, split in sorted(manifest.splits.items())
        ],
    }
    by_name = {feature.name: _feature(feature, manifest) for feature in manifest.schema.features}
    features = _of_class("features_dict.FeaturesDict", featuresDict={"features": by_name})
    contents = {"dataset_info.json": _dump(info), "features.json": _dump(features)}
    label = manifest.schema.with_role("token_labels") or manifest.schema.with_role("label")
    if manifest.label_names is not None and label is not None and _holds_class_ids(label):
        # TFDS reads one name per line.
        names = (" ".join(name.split()) or "_" for name in manifest.label_names)
        contents[f"{label.name}.labels.txt"] = "".join(f"{name}\n" for name in names).encode()
    return contents


def _holds_class_ids(feature: Feature) -> bool:
    return feature.role == "token_labels" or (feature.role == "label" and not feature.shape)


def _feature(feature: Feature, manifest: Manifest) -> dict[str, Any]:
    if manifest.label_names is not None and _holds_class_ids(feature):
        num_classes = str(len(manifest.label_names))
        label = _of_class("class_label_feature.ClassLabel", classLabel={"numClasses": num_classes})
        if not feature.shape:
            return label
        return _of_class("sequence_feature.Sequence", sequence={"length": str(feature.shape[0]), "feature": label})
    if feature.dtype == "string":
        return _of_class("text_feature.Text", text={})
    shape = {"dimensions": [str(size) for size in feature.shape]} if feature.shape else {}
    dtype = "string" if feature.is_bytes else feature.dtype
    return _of_class("tensor_feature.Tensor", tensor={"shape": shape, "dtype": dtype, "encoding": "none"})


def _of_class(name: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"tensorflow_datasets.core.features.{name}", **content}


def _dump(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
