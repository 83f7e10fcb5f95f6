"""A profile of some steps, for TensorBoard: what the devices and the host did, written to MODEL_DIR/logs."""

from __future__ import annotations

from pipelines.train.engines import Engine

__all__ = ["Profile"]


class Profile:
    """Begins before step `span[0]` and ends after step `span[1]`; without a span it does nothing."""

    def __init__(self, span: tuple[int, int] | None, *, engine: Engine, log_dir: str) -> None:
        self._engine = engine
        self._span = span
        self._log_dir = log_dir
        self._running = False

    def after(self, step: int) -> str | None:
        """To be called before the first step and after each call. Returns a line for people where there is news."""
        if self._span is None:
            return None
        first, last = self._span
        if step == first - 1:
            self._engine.start_profile(self._log_dir)
            self._running = True
        elif self._running and step >= last:
            self.close()
            return f"profiled steps {first:,} to {last:,}: `tensorboard --logdir {self._log_dir}` (Profile) shows it"
        return None

    def missed(self, start: int) -> bool:
        """Whether a training that goes on after step `start` is beyond the profile's first step."""
        return self._span is not None and start >= self._span[0]

    def close(self) -> None:
        """Ends what is running; what it has seen is written."""
        if self._running:
            self._running = False
            self._engine.stop_profile()
