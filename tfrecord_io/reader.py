"""Open a dataset for training and evaluation in pure `tf.data`.

    data = reader.open("gs://bucket/imdb")                        one small read, one listing
    data.input_fn("train", global_batch_size=1024, seed=0)        for strategy.distribute_datasets_from_function
    data.dataset("validation", global_batch_size=1024)            for Keras fit and evaluate

Training is endless and shuffled. Evaluation has every example once, in order, then fill rows of weight 0, so that all
hosts take the same number of steps.

Without an objective, an element is a dict with static shapes: numeric features, int32 or float32 [B, *shape]; text and
bytes, string [B], if `keep` names them; `attention_mask`, int32 [B, L]; `example_weight`, float32 [B], 0 on fill rows.
With an objective, an element is (inputs, labels, sample weights), as Keras expects.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import textwrap
from collections.abc import Collection, Iterator, Mapping

import tensorflow as tf

from tfrecord_io import manifest as manifests
from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import host_plan, shard_reading
from tfrecord_io.input_pipeline.base import InputFunctions
from tfrecord_io.input_pipeline.host_plan import Shuffle
from tfrecord_io.input_pipeline.shard_reading import SplitShards
from tfrecord_io.manifest import Manifest
from tfrecord_io.random_access import storage

__all__ = ["Data", "Shuffle", "open"]


def open(root: str | os.PathLike[str]) -> Data:
    """Open the dataset in folder `root`, a local path or any address that `tf.io.gfile` supports.

    An earlier generation's manifest, such as `out/manifest-0.json`, opens the dataset as it was before the append. The
    sizes of shards at an address are checked only if fsspec can list the folder.

    Raises:
        ReaderError: the manifest or a shard is missing, a shard has a wrong size, or a feature has a reserved name.
        ManifestError: the manifest is invalid.
    """
    folder, name = manifests.folder_and_name(os.fspath(root))
    manifest = manifests.open_manifest(
        folder, name, read=functools.partial(_read, folder), sizes=functools.partial(_sizes, folder)
    )
    names = (host_plan.WEIGHT, *["attention_mask"] * host_plan.computes_mask(manifest.schema))
    if taken := [name for name in names if name in manifest.schema.names]:
        raise ReaderError(
            f"{folder}: feature {taken[0]!r} has a name that the reader reserves",
            remedy="build the dataset without this column, or with another name for it",
        )
    return Data(root=folder, manifest=manifest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(InputFunctions):
    """An opened dataset (see `InputFunctions`)."""

    root: str
    manifest: Manifest

    def __repr__(self) -> str:
        root = self.root if len(self.root) <= 70 else "…" + self.root[-69:]
        splits = ", ".join(f"{name} {split.num_examples:,}" for name, split in self.splits.items())
        features = ", ".join(f"{feature.name} {list(feature.shape)}" for feature in self.manifest.schema.features)
        splits, features = (textwrap.shorten(text, n, placeholder=" …") for text, n in ((splits, 50), (features, 145)))
        return f"Data({root!r}: {splits} examples; {features})"

    def steps_per_epoch(self, split: str, *, global_batch_size: int) -> int:
        """Return the number of whole global batches per epoch, at least 1."""
        host_plan.check_positive("global_batch_size", global_batch_size)
        return max(1, self.num_examples(split) // global_batch_size)

    def evaluation_steps(self, split: str, *, global_batch_size: int) -> int:
        """Return the number of global batches in an evaluation. Raises: as `num_examples`."""
        return host_plan.evaluation_steps(self.num_examples(split), global_batch_size=global_batch_size)

    def bucket(self, length: int) -> Data:
        """Return the rows of one length in tokens as a dataset. Raises: ManifestError if no row has it."""
        return Data(root=self.root, manifest=self.manifest.bucket(length))

    def source(self, split: str, *, seed: int = 0) -> SplitShards:
        """Return the shards of a split. `seed` determines the order of their records in training.

        Raises: ReaderError if the split is missing or empty, or has rows of several lengths.
        """
        shards = self._split(split).shards
        if self.manifest.bucket_lengths:
            raise ReaderError(
                f"{self.root}: rows have several lengths, {list(self.manifest.bucket_lengths)}, expected one, since "
                "elements have a static shape",
                remedy="read the rows by length: `from tfrecord_io import buckets; "
                f"buckets.read(data, {split!r}, …)`; or read one length alone: `data.bucket(length)`",
            )
        if not shards:
            raise ReaderError(
                f"{self.root}: split {split!r} has no examples, expected at least one",
                remedy="read another split; the ledger in manifest.json shows why rows were rejected",
            )
        return SplitShards(
            root=self.root,
            shards=shards,
            compression=self.manifest.compression,
            index_stride=self.manifest.index_stride,
            seed=seed,
        )

    def _sources(self, split: str, *, seed: int, training: bool) -> tuple[SplitShards, ...]:
        del training
        return (self.source(split, seed=seed),)


def _read(folder: str, name: str, *, most: int) -> bytes:
    with _as_os_error(), tf.io.gfile.GFile(shard_reading.join(folder, name), "rb") as file:
        return bytes(file.read(most))


def _sizes(folder: str, names: Collection[str]) -> Mapping[str, int | None]:
    # One listing: on gs://, one request per file took 16 s for 10,000 files.
    try:
        return {**storage.at(folder).sizes(names)}
    except Exception:  # fsspec may lack the package for this scheme, or credentials
        with _as_os_error():
            return dict.fromkeys(set(tf.io.gfile.listdir(folder)).intersection(names))


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(error.message) from error
    except tf.errors.FailedPreconditionError as error:  # a file in place of a folder
        raise NotADirectoryError(error.message) from error
    except tf.errors.OpError as error:
        raise OSError(f"{type(error).__name__}: {error.message}") from error
