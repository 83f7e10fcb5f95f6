"""Predictions from a sample are accurate: shards are within a tenth of the requested size, for any texts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.plan import sample_rows, sampling
from tests.prepare import stored
from tests.prepare.stored import Work
from tests.support.texts import english, foreign
from tests.support.tokenizers_zoo import Zoo

ROWS = 2000


def _skewed(rng: np.random.Generator, rows: int) -> np.ndarray:
    return np.maximum(1, rng.lognormal(3.2, 1.0, rows)).astype(int)


def _lognormal(rng: np.random.Generator, rows: int = ROWS) -> list[str]:
    return [english(words, rng) for words in _skewed(rng, rows)]


def _sorted(rng: np.random.Generator, rows: int = ROWS) -> list[str]:
    return [english(words, rng) for words in np.sort(_skewed(rng, rows))]


def _bimodal(rng: np.random.Generator, rows: int = ROWS) -> list[str]:
    return [english(3 if rng.random() < 0.5 else 120, rng) for _ in range(rows)]


def _half_foreign(rng: np.random.Generator, rows: int = ROWS) -> list[str]:
    return [english(40, rng) if row < rows // 2 else foreign(90, rng) for row in range(rows)]


Corpus = Callable[[np.random.Generator, int], list[str]]


def _work(folder: Path, zoo: Zoo, made: Sequence[str | None], *, group_rows: int = 1000, **options: Any) -> Work:
    source = stored.parquet(folder, {"text": list(made)}, group_rows=group_rows)
    return stored.work(zoo.path("wordpiece_uncased"), source, **options)


@pytest.mark.parametrize(
    ("corpus", "options"),
    [
        (_sorted, {"name": "pack", "targets": 7.0}),
        # Rows of these two are in no order to begin with.
        (_lognormal, {"name": "concat"}),
        *((_bimodal, {"name": name, "shuffle": False}) for name in ("pad", "concat")),
        *(
            (corpus, {"name": name, "shuffle": shuffle})
            for corpus in (_sorted, _half_foreign)
            for name, shuffle in (("pad", True), ("concat", False))
        ),
        # Smaller shards are too close to the size of the compression window, which every shard fills again.
        *(
            (corpus, {"targets": 7.0, "rows": 6000, "shuffle": shuffle, "compression": "gzip"})
            for corpus, shuffle in ((_sorted, True), (_half_foreign, False))
        ),
    ],
)
def test_every_shard_is_within_a_tenth_of_the_target(
    tmp_path: Path, zoo: Zoo, corpus: Corpus, options: dict[str, Any]
) -> None:
    options = {"targets": 12.7, "rows": ROWS, "name": "pad", "shuffle": True, **options}
    layout, targets = LayoutConfig(name=options.pop("name"), max_length=64), options.pop("targets")
    made = corpus(np.random.default_rng(1), options.pop("rows"))
    plan, shard_bytes = stored.plan(work := _work(tmp_path, zoo, made, layout=layout, **options), targets=targets)
    assert plan.num_shards in (int(targets), int(targets) + 1)
    assert np.abs(stored.shard_sizes(work, plan) / shard_bytes - 1).max() < 0.1


def test_a_small_split_is_sampled_almost_whole(tmp_path: Path, zoo: Zoo) -> None:
    sample = _work(tmp_path, zoo, ["one two", "three"] * 50, layout=LayoutConfig(max_length=16)).measure()
    assert len(sample.row_tokens) == 96  # six clusters of sixteen


def test_a_sample_too_short_for_one_row_still_foretells_its_size(tmp_path: Path, zoo: Zoo) -> None:
    layout = LayoutConfig(name="concat", max_length=512, remainder="drop")
    assert 600 < _work(tmp_path, zoo, ["a few words", "and some more"], layout=layout).measure().record_bytes < 2000


def test_parts_of_a_split_are_sampled_where_they_lie(tmp_path: Path, zoo: Zoo) -> None:
    made = ["short"] * 500 + ["x " * 40] * 500
    source = stored.parquet(tmp_path, {"text": made}, ranges=[(900, 1000), (600, 700)])
    sample = stored.work(zoo.path("wordpiece_uncased"), source).measure()
    assert len(sample.row_tokens) > 150
    assert set(sample.row_tokens.tolist()) == {42}


def _long(rng: np.random.Generator, sigma: float) -> np.ndarray:
    return np.maximum(1, rng.lognormal(np.log(1300) - sigma**2 / 2, sigma, 2000)).astype(int)


def _one_huge(rng: np.random.Generator) -> np.ndarray:
    words = rng.integers(20, 60, 2000)
    words[1234] = 300_000
    return words


_LENGTHS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "log-normal, 1.5": lambda rng: _long(rng, 1.5),
    "sorted": lambda rng: np.sort(_long(rng, 1.0)),
    "two kinds": lambda rng: np.where(
        rng.random(2000) < 0.8, rng.integers(20, 60, 2000), rng.integers(3000, 5000, 2000)
    ),
    "one huge row": _one_huge,
}


def _measured(folder: Path, zoo: Zoo, words: np.ndarray, **options: Any) -> sampling.Sample:
    """Return the sample of rows with these numbers of words; each word is a token of two bytes."""
    made = ["x " * int(count) for count in words]
    options.setdefault("layout", LayoutConfig(max_length=64))
    return _work(folder, zoo, made, **options).measure()


@pytest.mark.parametrize("name", _LENGTHS)
def test_long_rows_count_as_much_as_short_ones(tmp_path: Path, zoo: Zoo, name: str) -> None:
    words = _LENGTHS[name](np.random.default_rng(5))
    tokens = _measured(tmp_path, zoo, words).row_tokens - 2  # [CLS] and [SEP]
    assert tokens.mean() == pytest.approx(words.mean(), rel=0.03)
    assert np.percentile(tokens, 95) == pytest.approx(np.percentile(words, 95), rel=0.04)


@pytest.mark.parametrize(("words", "rows", "most_bytes"), [(150_000, 100, 1 << 20), (12_000, 600, 75 * 24_000)])
def test_rows_of_any_length_take_bounded_time(tmp_path: Path, zoo: Zoo, words: int, rows: int, most_bytes: int) -> None:
    work = _work(tmp_path, zoo, ["x " * words] * rows, layout=LayoutConfig(name="concat", max_length=512))
    sample = sample_rows.read(work.job.spec, work.encoder, work.splits["train"])
    assert sample.text_bytes.sum() < most_bytes
    assert len(sample.text_bytes) + len(sample.weighed_bytes) == rows // 16 * 16  # clusters of sixteen


@pytest.mark.parametrize("name", ["pad", "concat"])
def test_the_tokens_of_long_rows_are_counted_as_far_as_records_hold_them(tmp_path: Path, zoo: Zoo, name: Any) -> None:
    words = _one_huge(np.random.default_rng(0))
    sample = _measured(tmp_path, zoo, words, layout=LayoutConfig(name=name, max_length=64))
    held = np.minimum(words + 2, 64) if name == "pad" else words + 1
    assert sample.num_tokens / len(sample.row_tokens) == pytest.approx(held.mean(), rel=0.03)
