"""What readiness says of pipelines that cannot run on a TPU, and that it says nothing of ours."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tfrecord_io.conftest import WriteDataset, pad_shards
from tfrecord_io import objectives, reader, readiness
from tfrecord_io.errors import ReaderError
from tfrecord_io.reader import Data
from tfrecord_io.readiness import Finding

BATCH = 8


def check(dataset: tf.data.Dataset, **changes: Any) -> list[Finding]:
    return readiness.check(dataset, **{"tpu": "node", "batch": "per_replica", **changes})


def kinds(findings: list[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def the_only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def numbers() -> tf.data.Dataset:
    """int32 [BATCH], without end: nothing to complain about."""
    return tf.data.Dataset.range(1000).map(narrow).repeat().batch(BATCH, drop_remainder=True)


def mapped(function: Callable[..., Any]) -> tf.data.Dataset:
    return numbers().map(lambda values: tf.ensure_shape(function(values), [BATCH]))


def same(values: Any) -> Any:
    return values


def rows() -> Iterator[list[int]]:
    yield [0] * BATCH


def narrow(row: Any) -> Any:
    return tf.cast(row, tf.int32)


def padded() -> tf.data.Dataset:
    rows_of_ids = tf.data.Dataset.range(100).map(lambda row: {"input_ids": tf.range(narrow(row))})
    return rows_of_ids.padded_batch(BATCH, drop_remainder=True)


def ragged() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2, drop_remainder=True)


def texts() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors({"text": tf.constant(["a"] * BATCH), "label": tf.zeros([BATCH])})


@pytest.fixture
def data(write_dataset: WriteDataset) -> Data:
    """120 examples in 3 shards for training, 20 in one for validation."""
    return reader.open(write_dataset({"train": pad_shards(40, 40, 40), "validation": pad_shards(20)}))


BUCKET = "gs://bucket/tiny"


@pytest.mark.parametrize(
    ("root", "split", "options", "kind", "words"),
    [
        (BUCKET, "train", {"tpu": "node"}, "", "ok "),
        (BUCKET, "train", {"tpu": "node", "objective": objectives.masked_lm()}, "", "ok "),
        ("", "train", {"tpu": "vm", "start_step": 1}, "", "ok "),
        ("", "validation", {"tpu": "vm", "start_step": 1}, "", "ok "),
        ("", "train", {"tpu": "node", "start_step": 1}, "path", "{root}/tiny-train-0000"),
        ("", "validation", {"tpu": "node"}, "path", "gs://BUCKET"),
        ("", "train", {"tpu": "vm", "num_hosts": 2}, "path?", "{root}/tiny-train-0000"),
        (BUCKET, "train", {"tpu": "node", "num_hosts": 4}, "", "ok "),
        ("", "train", {"tpu": "vm", "global_batch_size": 60}, "input", "a multiple of the 8 replicas"),
        ("", "test", {"tpu": "vm"}, "input", "no split 'test'"),
        ("", "train", {"tpu": "vm", "start_step": -1}, "input", "start_step is -1"),
    ],
)
def test_our_data_is_ready_or_named(data: Data, root: str, split: str, options: Any, kind: str, words: str) -> None:
    """A question mark means a warning. Nothing is read from the bucket."""
    placed = dataclasses.replace(data, root=root or data.root)
    findings = readiness.check_data(placed, split, **{"global_batch_size": 64, **options})
    assert [finding.kind + "?" * (not finding.fatal) for finding in findings] == [kind] * bool(kind)
    assert words.format(root=data.root) in readiness.describe(findings)


def test_names_of_features_are_no_paths(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input_ids").mkdir()
    dataset = dataclasses.replace(data, root=BUCKET).dataset("train", global_batch_size=64)
    assert check(dataset, batch="global") == []


def randomized() -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(0)
    return mapped(lambda values: values + generator.uniform([BATCH], maxval=9, dtype=tf.int32))


SPEC = tf.TensorSpec([BATCH], tf.int32)


def by_python(values: tf.Tensor) -> Any:
    return tf.numpy_function(same, [values], tf.int32)


def deep() -> tf.data.Dataset:
    """A Python function in a branch of a function that a map within an interleave calls."""

    @tf.function
    def inner(values: tf.Tensor) -> tf.Tensor:
        return tf.cond(values[0] > 0, lambda: tf.numpy_function(same, [values], tf.int32), lambda: values)

    return numbers().interleave(
        lambda values: tf.data.Dataset.from_tensors(values).map(lambda x: tf.ensure_shape(inner(x), [BATCH]))
    )


def looked_up() -> tf.data.Dataset:
    pairs = tf.lookup.KeyValueTensorInitializer(tf.range(3), tf.range(3))
    return mapped(tf.lookup.StaticHashTable(pairs, default_value=0).lookup)


def iterated() -> tf.data.Dataset:
    other = iter(numbers())
    return mapped(lambda values: values + next(other))


class TestOthers:
    @pytest.mark.parametrize(
        ("dataset", "changes", "kind", "words"),
        [
            (lambda: tf.data.Dataset.from_generator(rows, output_signature=SPEC), {}, "generator", "-tfrecords build"),
            (lambda: mapped(by_python), {}, "python", "PyFunc in map_lambda"),
            (lambda: mapped(lambda values: tf.py_function(same, [values], tf.int32)), {}, "python", "PyFunc in map_"),
            (deep, {}, "python", "PyFunc in"),
            (lambda: mapped(by_python), {"tpu": "vm"}, "python?", ""),
            (lambda: mapped(by_python), {"tpu": "vm", "num_hosts": 2}, "python", ""),
            (looked_up, {}, "table", ""),
            (iterated, {}, "iterator", "zip"),
            (randomized, {}, "variable", "stateless"),
            (lambda: tf.data.Dataset.from_tensors(np.zeros(20 << 20, np.uint8)), {}, "data in the graph?", "21 MB"),
            (lambda: tf.data.Dataset.range(9).map(narrow).batch(8), {}, "shape", "element: has shape (None,), exp"),
            (padded, {}, "shape", "component ['input_ids']: has shape (8, None), expected"),
            (ragged, {}, "shape", "element: is a RaggedTensorSpec, expected"),
            (texts, {}, "dtype", "component ['text']: is string, which a TPU does not support\n       tokenize text"),
            (lambda: numbers().map(lambda x: (x, {"a": tf.cast(x, tf.int64)})), {}, "dtype?", "[1]['a']: is int64"),
            (lambda: numbers().map(lambda x: tf.cast(x, tf.float64)), {}, "dtype?", "tf.cast(x, tf.float32)"),
            (numbers, {"num_replicas": 3, "batch": "global"}, "batch", "use batches of 9"),
            (numbers, {"num_replicas": 16, "batch": "global"}, "batch", "a multiple of the 16 replicas"),
            (lambda: numbers().unbatch(), {"batch": "global"}, "batch", "has 0 rows"),
        ],
    )
    def test_what_no_tpu_takes_is_found(self, dataset: Any, changes: dict[str, Any], kind: str, words: str) -> None:
        finding = the_only(check(dataset(), **changes))
        assert (finding.kind, finding.fatal) == (kind.removesuffix("?"), not kind.endswith("?"))
        assert words in readiness.describe([finding])

    @pytest.mark.parametrize("dtype", [tf.bfloat16, tf.bool, tf.uint8, tf.float16])
    def test_other_types_are_taken(self, dtype: tf.DType) -> None:
        assert check(numbers().map(lambda values: tf.cast(values, dtype))) == []


class TestPaths:
    @pytest.mark.parametrize(
        "dataset",
        [
            lambda path: tf.data.TFRecordDataset(path),
            lambda path: tf.data.Dataset.from_tensor_slices([path]).interleave(tf.data.TFRecordDataset),
            lambda path: tf.data.Dataset.from_tensors(path).map(tf.io.read_file),
            lambda path: numbers().map(lambda values: tf.io.read_file(path)),
            lambda path: tf.data.TextLineDataset(path),
            lambda path: tf.data.FixedLengthRecordDataset(path, 4),
            lambda path: numbers().cache(path),
            lambda path: numbers().snapshot(path),
            lambda path: tf.data.Dataset.from_tensors(f"{path[:-1]}*").map(tf.io.matching_files),
        ],
    )
    def test_a_local_path_is_found_wherever_it_is_read(self, dataset: Any, tmp_path: Path) -> None:
        path = tmp_path / "records"
        path.touch()
        findings = [finding for finding in check(dataset(str(path))) if finding.kind == "path"]
        assert [(finding.place.replace("*", "s"), finding.fatal) for finding in findings] == [(str(path), True)]

    @pytest.mark.parametrize("path", ["file:///data/a", "s3://bucket/a"])
    def test_whatever_is_not_gs_is_out_of_a_nodes_reach(self, path: str) -> None:
        assert "path" in kinds(check(tf.data.Dataset.from_tensors(0).map(lambda _: tf.io.read_file(path))))

    def test_paths_on_gs_are_within_reach(self) -> None:
        paths = tf.data.Dataset.range(4).map(lambda n: tf.strings.join(["gs://bucket/", tf.strings.as_string(n)]))
        assert "path" not in kinds(check(paths.interleave(tf.data.TFRecordDataset)))

    def test_other_strings_are_no_paths(self) -> None:
        reviews = tf.data.Dataset.from_tensor_slices(["/ 10", "see https://example.com"])
        records = tf.data.Dataset.zip(reviews, tf.data.TFRecordDataset("gs://bucket/a", compression_type="GZIP"))
        assert "path" not in kinds(check(records))


class TestGraph:
    def test_that_cannot_be_written(self) -> None:
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=["gs://bucket/a"], compression_type="", buffer_size=0, byte_offsets=[0]
        )
        dataset = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        graph = check(dataset)[0]
        assert (graph.kind, graph.fatal) == ("graph", True)
        assert "TFRecordDatasetV2" in graph.problem

    def test_that_is_too_large_to_be_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # What TensorFlow gives for an array of 2 GB, after half a minute.
        monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", lambda **_: tf.constant(b""))
        finding = the_only(check(numbers()))
        assert finding.fatal
        assert "2 GB" in finding.problem

    def test_that_is_being_built(self) -> None:
        @tf.function(autograph=False)
        def inside() -> None:
            check(numbers())

        with pytest.raises(ReaderError, match="eager"):
            inside()

    @pytest.mark.parametrize(
        "changes", [{"tpu": "pod"}, {"batch": "all"}, {"num_replicas": 0}, {"num_hosts": 0}, {"num_hosts": 3}], ids=str
    )
    def test_nonsense_is_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ReaderError, match="expected"):
            check(numbers(), **changes)


class TestReport:
    FATAL = Finding(kind="path", place="/data/a", problem="is local", remedy="copy it", fatal=True)
    WARNING = Finding(kind="dtype", place="component ['x']", problem="is int64", remedy="", fatal=False)

    def test_fatal_findings_come_first_with_their_remedies(self) -> None:
        assert readiness.describe([]).startswith("ok ")
        assert readiness.describe([self.WARNING, self.FATAL]).splitlines() == [
            "BAD  /data/a: is local",
            "       copy it",
            "warn component ['x']: is int64",
        ]

    def test_fatal_findings_are_an_error_and_warnings_none(self) -> None:
        with pytest.raises(ReaderError, match=r"\(and 1 more\): /data/a: is local") as caught:
            readiness.require([self.WARNING, self.FATAL, dataclasses.replace(self.FATAL, place="/data/b")])
        assert caught.value.remedy == "copy it"
        readiness.require([self.WARNING])
