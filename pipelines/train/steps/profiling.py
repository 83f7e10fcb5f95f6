"""A profile of some steps, for TensorBoard: what the devices and the host did, written to MODEL_DIR/logs."""

from __future__ import annotations

from pipelines.train.engines import Engine

__all__ = ["Profile"]


class Profile:
    """Profiles the calls with the steps `span[0]` to `span[1]`; without a span it does nothing."""

    def __init__(self, span: tuple[int, int] | None, *, engine: Engine, log_dir: str) -> None:
        self._engine = engine
        self._span = span
        self._log_dir = log_dir
        self._running = False

    def after(self, step: int) -> str | None:
        """To be called before the first step and after each call. Returns a line for people where there is news."""
        first, last = self._span or (1, 0)
        if self._running and step >= last:
            self.close()
            return f"profiled steps {first:,} to {step:,}: `tensorboard --logdir {self._log_dir}` (Profile) shows it"
        if not self._running and first - 1 <= step < last:
            self._engine.start_profile(self._log_dir)
            self._running = True
        return None

    def close(self) -> None:
        """Ends what is running; what it has seen is written."""
        if self._running:
            self._running = False
            self._engine.stop_profile()
