"""How many tokens and spans a text loses in span corruption, and the ids that are needed for it."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objective_parts.decoder import DECODER_INPUTS, DECODER_MASK
from tfrecord_io.objective_parts.tokens import TokenFeatures, check_free

__all__ = ["SpanCounts", "check_numbers", "check_rows", "eos", "sentinels"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCounts:
    """What texts of 0 ... L tokens lose: int32 [L + 1] tokens, in int32 [L + 1] spans."""

    noise: np.ndarray
    spans: np.ndarray

    @classmethod
    def of(cls, row_length: int, *, density: float, mean_span: float) -> SpanCounts:
        n = np.arange(row_length + 1)
        noise = np.where(n < 2, 0, np.clip(np.rint(density * n), 1, np.maximum(n - 1, 1)))
        spans = np.where(n < 2, 0, np.clip(np.rint(noise / mean_span), 1, n - noise + 1))
        return cls(noise=noise.astype(np.int32), spans=spans.astype(np.int32))

    @property
    def row_length(self) -> int:
        return len(self.noise) - 1

    @property
    def max_spans(self) -> int:
        return int(self.spans.max())

    @property
    def input_length(self) -> int:
        """Input length of the longest text, with a sentinel for each span and EOS."""
        return int((np.arange(self.row_length + 1) - self.noise + self.spans).max()) + 1

    @property
    def target_length(self) -> int:
        """Target length for the most spans, a sentinel before each, and EOS."""
        return int((self.noise + self.spans).max()) + 1


def check_numbers(density: float, mean_span: float) -> None:
    """Raises: ReaderError if one of them is out of range."""
    if not 0 < density < 1:
        raise ReaderError(f"density is {density!r}, expected more than 0 and less than 1")
    if not 1 <= mean_span < float("inf"):
        raise ReaderError(f"mean_span is {mean_span!r}, expected at least 1")


def check_rows(manifest: Manifest, tokens: TokenFeatures) -> None:
    """Raises: ReaderError if rows of this dataset cannot lose spans."""
    check_free(manifest, DECODER_INPUTS, DECODER_MASK, objective="span_corruption")
    if tokens.segments is not None:
        raise ReaderError(
            f"dataset {manifest.name!r}: its rows hold several documents each ({tokens.segments}), span_corruption "
            "expects rows of one text",
            remedy="build the dataset with --layout concat or pad",
        )
    if manifest.row_length < 2:
        raise ReaderError(
            f"dataset {manifest.name!r}: rows of 1 token, span_corruption expects at least 2",
            remedy="build the dataset with a larger --max-length",
        )


def sentinels(given: tuple[int, ...] | None, manifest: Manifest, *, needed: int) -> np.ndarray:
    """int32 [needed]: the ids that stand for the first span, the second, ..."""
    ids = manifest.tokenizer.sentinel_ids if given is None else given
    if len(ids) < needed:
        whose = f"tokenizer {manifest.tokenizer.name!r} has" if given is None else "sentinel_ids are"
        raise ReaderError(
            f"dataset {manifest.name!r}: rows of {manifest.row_length} tokens lose up to {needed} spans, "
            f"but {whose} {len(ids)} sentinels, expected one for each span",
            remedy="give sentinel_ids that the model has, a lower density or a longer mean_span, or build the dataset "
            "with shorter rows or a tokenizer that has tokens <extra_id_0>, <extra_id_1>, ...",
        )
    if len(set(ids)) < len(ids) or min(ids) < 0:
        raise ReaderError(f"sentinel_ids are {list(ids)!r:.200}, expected distinct ids")
    return np.array(ids[:needed], np.int32)


def eos(given: int | None, manifest: Manifest) -> int:
    """The id that ends inputs and targets. Raises: ReaderError if there is none."""
    eos_id = manifest.tokenizer.eos_id if given is None else given
    if eos_id is None:
        raise ReaderError(
            f"dataset {manifest.name!r}: tokenizer {manifest.tokenizer.name!r} has no EOS token, span_corruption "
            "expects one",
            remedy="give eos_id: the id that ends inputs and targets, such as that of the separator token",
        )
    return eos_id
