"""Base class of `reader.Data` and `mixture.Mixture`."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, get_args

import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import batch_graph, host_plan
from tfrecord_io.input_pipeline.host_plan import Host, Order, Shuffle
from tfrecord_io.input_pipeline.shard_reading import InputRequest, SplitShards
from tfrecord_io.manifest import Manifest, Split
from tfrecord_io.mixing.mixing_plan import Rates
from tfrecord_io.objectives import BoundObjective, Objective
from tfrecord_io.ordering import global_order

Names = Literal["keras-hub"] | Mapping[str, str]

# Input names in KerasHub (`bert_backbone.py`, `masked_lm_preprocessor.py`, `seq_2_seq_lm_preprocessor.py`).
_KERAS_HUB = {
    "input_ids": "token_ids",
    "token_type_ids": "segment_ids",
    "attention_mask": "padding_mask",
    "masked_positions": "mask_positions",
}
_KERAS_HUB_SEQ2SEQ = {
    "input_ids": "encoder_token_ids",
    "attention_mask": "encoder_padding_mask",
    "decoder_input_ids": "decoder_token_ids",
    "decoder_attention_mask": "decoder_padding_mask",
}


class InputFunctions(abc.ABC):
    """Base class of opened datasets and mixtures. `root`: the dataset's folder, for error messages."""

    root: str
    manifest: Manifest

    @property
    def splits(self) -> Mapping[str, Split]:
        """Splits by name. In a mixture, a split has the shards of all datasets, and exists if all of them have it."""
        return self.manifest.splits

    def tokens_per_example(self, split: str, *, step: int = 0) -> float:
        """Return the mean number of tokens, without padding, in an example of a split.

        In a mixture, the mean depends on the training `step`. Raises: as `num_examples`.
        """
        return self._split(split).num_tokens / max(1, self.num_examples(split))

    @abc.abstractmethod
    def _sources(self, split: str, *, seed: int, training: bool) -> tuple[SplitShards, ...]: ...

    def _rates(self, split: str) -> Rates:
        return {0: {"": 1.0}}

    def _end_step(self, split: str, *, global_batch_size: int, start_step: int, steps: int | None) -> int | None:
        return None

    def _bound(self, objective: Objective) -> BoundObjective:
        return objective.bind(self.manifest)

    def _usual_shuffle(self) -> Shuffle:
        return Shuffle()

    def num_examples(self, split: str) -> int:
        """Return the number of examples in a split. Raises: ReaderError if the split does not exist."""
        return self._split(split).num_examples

    def input_fn(
        self,
        split: str,
        *,
        global_batch_size: int,
        seed: int = 0,
        objective: Objective | None = None,
        training: bool | None = None,
        shuffle: Shuffle | None = None,
        order: Order = "hosts",
        start_step: SupportsIndex = 0,
        steps: int | None = None,
        keep: Sequence[str] = (),
        names: Names | None = None,
    ) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
        """Return an input function for `strategy.distribute_datasets_from_function`. An element is a replica's batch.

        Args:
            global_batch_size: number of rows per step over all replicas, a multiple of their number.
            seed: determines the order of the rows and the objective's random choices. With order="hosts", both
                also depend on the number of hosts, and the choices on the number of replicas.
            objective: see `tfrecord_io.objectives`; by default, elements are dicts of features.
            training: whether batches are endless and shuffled, or have every example once, in order. By default, they
                are endless for split "train" only.
            shuffle: how far rows are shuffled in training.
            order: "hosts": each host shuffles its share of the shards. "global": a global batch depends only on seed
                and step, so a run may resume on other hosts and replicas; splits of over 64 MB need an index, which
                gzip shards lack.
            start_step: number of global batches to skip. Later batches are the same as without it. Shards without an
                index (gzip) are read from their start.
            steps: number of steps in the whole training run. A mixture with `most_epochs` raises an error if a dataset
                would reach its maximum earlier; without `steps`, its batches end there.
            keep: names of text or bytes columns to add to the elements, string [B]; no TPU accepts strings. With an
                objective, `keep` may name any features, and elements are (inputs, labels, weights, {name: values}).
            names: new names of the inputs, {current name: new name}, or "keras-hub" for the names in KerasHub's models.

        Raises:
            ReaderError: for an impossible request, here or from the input function.
            CorruptRecordError: for a damaged index, from the input function in the global order.
        """
        host_plan.check_positive("global_batch_size", global_batch_size)
        host_plan.check_seed(seed)
        if order not in get_args(Order):
            raise ReaderError(f"order is {order!r}, expected one of {list(get_args(Order))}")
        if objective is not None and not hasattr(objective, "bind"):
            name = getattr(objective, "__name__", repr(objective))
            raise ReaderError(
                f"objective is {name}, expected an objective of tfrecord_io.objectives",
                remedy=f"call it: objective=objectives.{name}()" if callable(objective) else "see its documentation",
            )
        training = split == "train" if training is None else training
        first, end_step = host_plan.whole_step(start_step), None
        if training:
            end_step = self._end_step(split, global_batch_size=global_batch_size, start_step=first, steps=steps)
        request = InputRequest(
            manifest=self.manifest,
            sources=self._sources(split, seed=seed, training=training),
            global_batch_size=global_batch_size,
            seed=seed,
            objective=None if objective is None else self._bound(objective),
            training=training,
            shuffle=shuffle or (global_order.USUAL_SHUFFLE if order == "global" else self._usual_shuffle()),
            order=order,
            start_step=first,
            rates=self._rates(split) if training else {},
            end_step=end_step,
            keep=self._kept(keep, objective=objective),
        )
        return lambda context: renamed(batch_graph.build(request, _host(context)), names)

    def dataset(self, split: str, *, global_batch_size: int, **options: Any) -> tf.data.Dataset:
        """Return global batches for Keras in one process. `options`: other arguments of `input_fn`."""
        return self.input_fn(split, global_batch_size=global_batch_size, **options)(tf.distribute.InputContext())

    def _kept(self, keep: Sequence[str], *, objective: Objective | None) -> tuple[str, ...]:
        names = (keep,) if isinstance(keep, str) else tuple(keep)
        schema = self.manifest.schema
        known, kind = (schema.of_bytes, "text or bytes columns") if objective is None else (schema.names, "features")
        if unknown := [name for name in names if name not in known]:
            raise ReaderError(
                f"{self.root}: keep is {unknown}, expected some of the {kind} {list(known)}",
                remedy=f"leave {unknown[0]!r} out of keep, or build the dataset with --keep-column {unknown[0]}",
            )
        return names

    def _split(self, split: str) -> Split:
        if split not in self.splits:
            raise ReaderError(f"{self.root}: no split {split!r}, expected one of {list(self.splits)}")
        return self.splits[split]


def _host(context: tf.distribute.InputContext) -> Host:
    replicas, hosts = context.num_replicas_in_sync, context.num_input_pipelines
    host_plan.check_hosts(replicas, hosts)
    return Host(index=context.input_pipeline_id, count=hosts, replicas=replicas // hosts)


def renamed(dataset: tf.data.Dataset, names: Names | None) -> tf.data.Dataset:
    """Rename the inputs in a dataset's elements: {current name: new name}; None changes nothing.

    "keras-hub" uses the names in KerasHub's models, and drops other inputs, which these models reject.

    Raises: ReaderError for unknown or duplicate names, or for packed rows with "keras-hub".
    """
    if names is None:
        return dataset
    spec = dataset.element_spec
    inputs = spec[0] if isinstance(spec, tuple) else spec
    if isinstance(names, str):
        if "segment_ids" in inputs:
            raise ReaderError(
                "names is 'keras-hub', but rows are packed: KerasHub's models would use segment_ids as token types and "
                "attend across documents",
                remedy="build with another layout, such as concat or pad, or give names as a mapping",
            )
        known = _KERAS_HUB_SEQ2SEQ if "decoder_input_ids" in inputs else _KERAS_HUB
        new = {name: known[name] for name in inputs if name in known}
    else:
        if unknown := sorted(set(names) - set(inputs)):
            raise ReaderError(f"names: no input {unknown[0]!r}, expected some of {sorted(inputs)}")
        new = {name: names.get(name, name) for name in inputs}
        new_names = sorted(new.values())
        if len(set(new_names)) < len(new_names):
            raise ReaderError(f"names: several inputs get the same name in {new_names}, expected distinct names")

    def rename(*element: Any) -> Any:
        inputs = {new[name]: value for name, value in element[0].items() if name in new}
        return (inputs, *element[1:]) if element[1:] else inputs

    return dataset.map(rename)
