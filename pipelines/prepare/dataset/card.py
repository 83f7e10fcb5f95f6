"""The dataset card: OUT/README.md, with which a folder that is put on the hub says what it is and how to read it.

    ---
    # license: ...            left to the user: it is that of the source
    tags, size_categories, source_datasets, configs, dataset_info
    ---
    <!-- MARKER -->
    # NAME ...

The card follows from the manifest alone, so it is the same bytes on every runner. A README.md without the marker is
the user's: it is neither replaced nor deleted, and `verify` does not look at either kind.
The fields of the front matter are those of the hub's dataset cards (`huggingface_hub.DatasetCardData`).
"""

from __future__ import annotations

import os
from typing import Any

import yaml

from pipelines.prepare import storage
from tfrecord_io.errors import FormatError
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Feature
from tfrecord_io.shown import visible_line

__all__ = ["FILE_NAME", "MARKER", "content", "delete", "write"]

FILE_NAME = "README.md"
MARKER = (
    "<!-- Made by prep-tfrecords, which replaces it with the next build. Delete this line to keep your own text. -->"
)
_LICENSE = "# license: add that of the source, such as cc-by-4.0\n"
_MOST_BYTES = 1 << 20
_LISTED = 20
_SIZES = ((3, "n<1K"), (4, "1K<n<10K"), (5, "10K<n<100K"), (6, "100K<n<1M"), (7, "1M<n<10M"), (8, "10M<n<100M"))
_LARGE = ((9, "100M<n<1B"), (10, "1B<n<10B"), (11, "10B<n<100B"), (12, "100B<n<1T"))


def write(root: str, manifest: Manifest, *, replacing: int | None) -> None:
    """Write the card, unless there is a README.md of the user's. `replacing`: as in `storage`. Raises: OutputError."""
    if _is_free(root):
        storage.write_bytes(storage.join(root, FILE_NAME), content(manifest), inside=root, replacing=replacing)


def delete(root: str) -> None:
    """Delete the card, if there is one that is not the user's. Raises: OutputError."""
    if _is_free(root):
        storage.delete(storage.join(root, FILE_NAME), inside=root)


def _is_free(root: str) -> bool:
    """Whether there is no README.md, or one with the marker. A link is the user's, wherever it leads."""
    path = storage.join(root, FILE_NAME)
    local = storage.local_path(path)
    if local is not None and (os.path.islink(local) or os.path.isdir(local)):
        return False
    try:
        found = storage.read_bytes(path, most_bytes=_MOST_BYTES)
    except FileNotFoundError:
        return True
    except FormatError:  # far larger than ours
        return False
    return MARKER.encode() in found.splitlines()


def content(manifest: Manifest) -> bytes:
    """Return the text of the card."""
    front = yaml.safe_dump(_front_matter(manifest), sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{_LICENSE}{front}---\n{MARKER}\n{_body(manifest)}".encode()


def _front_matter(manifest: Manifest) -> dict[str, Any]:
    suffix = ".tfrecord.gz" if manifest.compression == "gzip" else ".tfrecord"
    rows = sum(split.num_examples for split in manifest.splits.values())
    fields: dict[str, Any] = {
        "pretty_name": manifest.name,
        "tags": ["prep-tfrecords", "tfrecord", "tokenized"],
        "size_categories": [_size_category(rows)],
    }
    if _hub_name(manifest):
        fields["source_datasets"] = [_hub_name(manifest)]
    bucket = "-b*" if manifest.bucket_lengths else ""
    files = [
        # Exact enough that `train` has no file of a split named `train-2`.
        {"split": name, "path": f"{manifest.name}-{name}{bucket}-?????-of-?????{suffix}"}
        for name in manifest.splits
    ]
    fields["configs"] = [{"config_name": "default", "data_files": files}]
    fields["dataset_info"] = {
        "features": [_feature(feature) for feature in manifest.schema.features],
        "splits": [
            {"name": name, "num_bytes": split.num_bytes, "num_examples": split.num_examples}
            for name, split in manifest.splits.items()
        ],
    }
    # The hub's viewer does not read TFRecord.
    fields["viewer"] = False
    return fields


def _size_category(rows: int) -> str:
    return next((name for digits, name in (*_SIZES, *_LARGE) if rows < 10**digits), "n>1T")


def _hub_name(manifest: Manifest) -> str:
    return str(manifest.source.get("name", "")) if manifest.source.get("kind") == "hub" else ""


def _feature(feature: Feature) -> dict[str, Any]:
    if len(feature.shape) == 1:
        return {"name": feature.name, "sequence": feature.dtype}
    dtype = "binary" if feature.dtype == "bytes" else feature.dtype
    return {"name": feature.name, "dtype": dtype, **({"shape": list(feature.shape)} if feature.shape else {})}


def _body(manifest: Manifest) -> str:
    parts = (
        f"# {manifest.name}\n\n{_about(manifest)}",
        "## Splits\n\n"
        + _table(("split", "rows of the source", "records", "tokens", "shards", "bytes"), _splits(manifest)),
        "## Features\n\n" + _table(("feature", "dtype", "shape", "meaning"), _features(manifest)),
        f"## How to read it\n\n{_reading(manifest)}",
    )
    return "\n\n".join(parts) + "\n"


def _about(manifest: Manifest) -> str:
    facts, source = manifest.tokenizer, manifest.source
    lengths = ", ".join(map(str, manifest.bucket_lengths or (manifest.row_length,)))
    lines = [
        "Tokenized records as TFRecord shards: standard `tf.train.Example`s, with one fixed shape for each feature.",
        "",
        f"- Layout: {_code(manifest.layout['name'])}, rows of {lengths} tokens",
        f"- Tokenizer: {_code(facts.name)} ({_code(facts.kind)}), {facts.vocab_size:,} tokens, stored in `tokenizer/`",
        f"- Source: {_source(manifest)}",
        f"- Fingerprint: {_code(manifest.fingerprint)}",
    ]
    if source.get("revision"):
        lines.append(f"- Revision of the source: {_code(source['revision'])}")
    if manifest.label_names is not None:
        more = f" and {len(manifest.label_names) - _LISTED:,} more" if len(manifest.label_names) > _LISTED else ""
        lines.append(f"- Labels: {', '.join(map(_code, manifest.label_names[:_LISTED]))}{more}")
    return "\n".join(lines)


def _source(manifest: Manifest) -> str:
    if _hub_name(manifest):
        return _code(_hub_name(manifest))
    kind, files = _code(manifest.source.get("kind", "files")), manifest.source.get("files")
    count = files.get("count") if isinstance(files, dict) else len(files) if isinstance(files, list) else 0
    return f"{count:,} files ({kind})" if count else kind


def _splits(manifest: Manifest) -> list[tuple[str, ...]]:
    return [
        (
            _code(name),
            f"{split.ledger.rows_of_split:,}",
            f"{split.num_examples:,}",
            f"{split.num_tokens:,}",
            f"{len(split.shards):,}",
            f"{split.num_bytes:,}",
        )
        for name, split in manifest.splits.items()
    ]


def _features(manifest: Manifest) -> list[tuple[str, ...]]:
    return [
        (
            _code(feature.name),
            feature.dtype,
            str(list(feature.shape)),
            visible_line(feature.meaning).replace("|", "\\|"),
        )
        for feature in manifest.schema.features
    ]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))


def _reading(manifest: Manifest) -> str:
    split = next(iter(manifest.splits), "train")
    lengths = manifest.bucket_lengths
    one = f".bucket({lengths[0]})" if lengths else ""
    several = "Rows have several lengths; each is read by itself, here the shortest. " if lengths else ""
    parts = [
        f"`PATH` is this folder, local or for example a `gs://` address. {several}"
        "`manifest.json` says all that a reader needs.",
        "TensorFlow, on TPUs and GPUs too:",
        _block(
            "from tfrecord_io import reader",
            f'data = reader.open("PATH"){one}',
            f'batches = data.dataset("{split}", global_batch_size=64)',
        ),
    ]
    if manifest.compression == "none" and not lengths and not manifest.generations:
        parts += [
            "TensorFlow Datasets, without any other library:",
            _block(
                "import tensorflow_datasets as tfds",
                f'rows = tfds.builder_from_directory("PATH").as_dataset(split="{split}")',
            ),
        ]
    parts += [
        "PyTorch, JAX and NumPy:",
        _block(
            "from tfrecord_io import random_access",
            f'rows = random_access.open("PATH"){one}["{split}"]',
            "rows[5]  # a dict of arrays; torch.utils.data.DataLoader takes `rows` as it is",
        ),
    ]
    return "\n\n".join(parts)


def _block(*lines: str) -> str:
    return "\n".join(("```python", *lines, "```"))


def _code(value: object) -> str:
    """Return a text from data as code in one line, in which Markdown and HTML mean nothing."""
    return "`" + visible_line(str(value)).replace("`", "'").replace("|", "\\|") + "`"
