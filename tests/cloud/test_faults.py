"""A build into a bucket while the network fails: it ends as if nothing had happened, and every byte is the same.

The faults happen in a proxy, which counts them: a test in which none happened fails.
"""

from __future__ import annotations

import pytest

from pipelines.prepare.storage import gcs as connection
from tests import building
from tests.building import REVIEWS, reviews
from tests.cloud.disturbed import shorten_pauses, through
from tests.cloud.emulator import Gcs
from tests.cloud.faults import Faults

pytestmark = pytest.mark.slow

WITH_LABELS = {"label_column": "label"}


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch, ours=0.05, theirs=0.1)


def build_and_verify(bucket: str) -> None:
    for words in (
        ["build", REVIEWS, *building.options(f"gs://{bucket}/out", **WITH_LABELS)],
        ["verify", f"gs://{bucket}/out"],
    ):
        outcome = building.command(*words)
        assert outcome.status == 0, outcome.err


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize(
    ("faults", "kinds"),
    [
        pytest.param(Faults(unavailable=0.05), {"unavailable"}, id="5 % of requests answered 503"),
        pytest.param(Faults(cut_uploads=0.2), {"cut_uploads"}, id="uploads cut in mid-body"),
        pytest.param(Faults(cut_downloads=0.1), {"cut_downloads"}, id="downloads cut in mid-body"),
        pytest.param(Faults(lost_answers=0.2), {"lost_answers"}, id="uploads done, but never answered"),
        pytest.param(Faults(burst_every=30, burst_seconds=0.5), {"bursts", "too_many"}, id="bursts of 429"),
        pytest.param(Faults(stall_at=20, stall_seconds=2), {"stalls"}, id="a stall"),
    ],
)
def test_a_build_ends_with_the_same_bytes(
    faults: Faults, kinds: set[str], gcs: Gcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = gcs.bucket()
    with through(gcs, faults, monkeypatch) as faulty:
        build_and_verify(bucket)
        counts = faulty.counts()
    assert {kind for kind in kinds if counts[kind]} == kinds, counts
    assert gcs.objects(bucket, "out/") == building.files(reviews())


@pytest.mark.usefixtures("_short_pauses")
def test_a_connection_that_is_silent_for_too_long_is_given_up(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_SILENCE_SECONDS", 0.5)
    bucket = gcs.bucket()
    with through(gcs, Faults(stall_at=20, stall_seconds=3600), monkeypatch) as faulty:
        build_and_verify(bucket)
        assert faulty.counts()["stalls"] == 1
    assert gcs.objects(bucket, "out/") == building.files(reviews())


@pytest.mark.usefixtures("_short_pauses")
def test_everything_at_once_and_half_a_minute_of_silence(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(
        seed=1,
        unavailable=0.05,
        cut_uploads=0.1,
        cut_downloads=0.05,
        burst_every=50,
        burst_seconds=2,
        stall_at=60,
        stall_seconds=30,
    )
    bucket = gcs.bucket()
    with through(gcs, faults, monkeypatch) as faulty:
        build_and_verify(bucket)
        counts = faulty.counts()
    assert all(counts[kind] for kind in ("unavailable", "cut_uploads", "cut_downloads", "too_many", "stalls")), counts
    assert gcs.objects(bucket, "out/") == building.files(reviews())
