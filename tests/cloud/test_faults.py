"""A build into a bucket while the network fails: it ends as if nothing had happened, and every byte is the same.

The faults happen in a proxy, which counts them: a test in which none happened fails.
"""

from __future__ import annotations

import pytest

from pipelines.prepare.storage import gcs as connection
from tests import building
from tests.building import REVIEWS, reviews
from tests.cloud.disturbed import through
from tests.cloud.emulator import Gcs
from tests.cloud.faults import Faults

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("short_pauses")]

WITH_LABELS = {"label_column": "label"}


def build_and_verify(bucket: str) -> None:
    for words in (
        ["build", REVIEWS, *building.options(f"gs://{bucket}/out", **WITH_LABELS)],
        ["verify", f"gs://{bucket}/out"],
    ):
        outcome = building.command(*words)
        assert outcome.status == 0, outcome.err


def test_a_connection_that_is_silent_for_too_long_is_given_up(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_SILENCE_SECONDS", 0.5)
    bucket = gcs.bucket()
    with through(gcs, Faults(stall_at=20, stall_seconds=3600), monkeypatch) as faulty:
        build_and_verify(bucket)
        assert faulty.counts()["stalls"] == 1
    assert gcs.objects(bucket, "out/") == building.files(reviews())


def test_everything_at_once_changes_no_byte(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(
        seed=1,
        unavailable=0.05,
        cut_uploads=0.1,
        cut_downloads=0.05,
        lost_answers=0.05,
        burst_every=50,
        burst_seconds=2,
        stall_at=60,
        stall_seconds=3,
    )
    bucket = gcs.bucket()
    with through(gcs, faults, monkeypatch) as faulty:
        build_and_verify(bucket)
        counts = faulty.counts()
    hit = ("unavailable", "cut_uploads", "cut_downloads", "lost_answers", "too_many", "stalls")
    assert all(counts[kind] for kind in hit), counts
    assert gcs.objects(bucket, "out/") == building.files(reviews())
