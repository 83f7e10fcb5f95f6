"""What goes wrong between a client and Google Cloud Storage, drawn from a seed: of every 1 / share requests one is hit,
and the seed says which.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import threading
import time
from http import HTTPStatus


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong. Shares are of the requests, or of those that have such a body; 0 is never."""

    seed: int = 0
    unavailable: float = 0
    """Answered with status 503, and not passed on."""
    cut_uploads: float = 0
    """The connection ends when half of the body has come. Of a part of a resumable upload the service keeps that half,
    in whole units of 256 KiB; of anything else nothing."""
    cut_downloads: float = 0
    """The connection ends when half of the answer is sent."""
    lost_answers: float = 0
    """What has a body is passed on and done, and the connection ends without an answer."""
    burst_every: int = 0
    """After so many requests comes a burst, in which each is answered with status 429. Those do not count towards the
    next burst: otherwise, clients that ask again soon enough would keep one burst alive for ever..."""
    burst_seconds: float = 0
    """...for so long."""
    stall_at: int = 0
    """One request, the first from this number on that was not refused, is held back..."""
    stall_seconds: float = 0
    """...for so long, and then passed on."""


class _Share:
    """Hits one of every 1 / share, at a place that the seed decides."""

    def __init__(self, share: float, seed: str) -> None:
        self._random = random.Random(seed)
        self._period = round(1 / share) if share else 0
        self._position = self._chosen = 0

    def hit(self) -> bool:
        if not self._period:
            return False
        if self._position == 0:
            self._chosen = self._random.randrange(self._period)
        hit = self._position == self._chosen
        self._position = (self._position + 1) % self._period
        return hit


class Script:
    """Decides for each request what becomes of it, and counts."""

    def __init__(self, faults: Faults) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._faults = faults
        self._lock = threading.Lock()
        self._burst_until = 0.0
        self._since_burst = 0
        self._shares = {
            name: _Share(getattr(faults, name), f"{faults.seed} {name}")
            for name in ("unavailable", "cut_uploads", "cut_downloads", "lost_answers")
        }

    def hits(self, name: str) -> bool:
        """Whether the fault of this name happens now."""
        with self._lock:
            hit = self._shares[name].hit()
            self.counts[name] += hit
            return hit

    def refusal(self, host: str) -> int:
        """To be asked once for each request: the status that it is refused with, or 0."""
        with self._lock:
            now, every = time.monotonic(), self._faults.burst_every
            self.counts["requests"] += 1
            self.counts[f"host {host}"] += 1
            self._since_burst += now >= self._burst_until
            if every and self._since_burst == every:
                self.counts["bursts"] += 1
                self._since_burst = 0
                self._burst_until = now + self._faults.burst_seconds
            if now < self._burst_until:
                self.counts["too_many"] += 1
                return HTTPStatus.TOO_MANY_REQUESTS
        return HTTPStatus.SERVICE_UNAVAILABLE if self.hits("unavailable") else 0

    def pause(self) -> float:
        """For how long a request that was not refused waits."""
        with self._lock:
            stalls = not self.counts["stalls"] and 0 < self._faults.stall_at <= self.counts["requests"]
            self.counts["stalls"] += stalls
            return self._faults.stall_seconds * stalls
