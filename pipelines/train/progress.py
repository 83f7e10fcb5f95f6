"""What a training says while it runs: lines for people, JSON lines for programs, TensorBoard scalars for both.

    step    120/1,000  loss 0.6312  12.1 steps/s  387 examples/s  10,140 tokens/s

The rates leave out the first call, which compiles, and the time of evaluating and saving. Lines come at once; scalars
are gathered for half a minute, since each write to gs:// sends the whole file again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

import tensorflow as tf

from pipelines.terminal.console import say

__all__ = ["Progress"]

_FLUSH_SECONDS = 30
_GATHERED = 10_000  # scalars, which are some 100 bytes each; TensorFlow would write after 10


class Progress:
    """Counts time and writes. `tokens_per_example` is the mean of the split, from the manifest."""

    def __init__(self, *, log_dir: str, total: int, batch_size: int, tokens_per_example: float, as_json: bool) -> None:
        self._writer = tf.summary.create_file_writer(log_dir, max_queue=_GATHERED, flush_millis=_FLUSH_SECONDS * 1000)
        self._total = total
        self._batch_size = batch_size
        self._tokens = tokens_per_example
        self._as_json = as_json
        self._since: tuple[int, float] | None = None
        self._clock: Callable[[], float] = time.monotonic

    @property
    def running(self) -> bool:
        """Whether the clock was ever started."""
        return self._since is not None

    def start_clock(self, step: int) -> None:
        """Rates count from here."""
        self._since = (step, self._clock())

    def training(self, step: int, *, loss: float, learning_rate: float) -> None:
        """After a call: the loss of its last step, and the rates since the last line."""
        rates = self._rates(step)
        self._scalars(step, "train", {"loss": loss, "learning_rate": learning_rate, **rates})
        shown = "  ".join(f"{value:,.{0 if value >= 100 else 2}f} {name}" for name, value in rates.items())
        self._say(f"step {step:>7,}/{self._total:,}  loss {loss:.4f}  {shown}".rstrip())
        self._emit({"step": step, "loss": loss, "learning_rate": learning_rate, **rates})

    def evaluation(self, step: int, *, split: str, metrics: Mapping[str, float], examples: int) -> None:
        """After a whole pass."""
        self._scalars(step, split, metrics)
        self._writer.flush()  # rare, and what people wait for
        shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self._say(f"step {step:>7,}/{self._total:,}  {split}: {shown}  ({examples:,} examples)")
        self._emit({"step": step, "split": split, "examples": examples, **metrics})

    def note(self, text: str) -> None:
        """A line for people."""
        self._say(text)

    def close(self) -> None:
        """Writes what TensorBoard has not yet."""
        self._writer.close()

    def _rates(self, step: int) -> dict[str, float]:
        if self._since is None or step <= self._since[0]:
            return {}
        steps_a_second = (step - self._since[0]) / max(self._clock() - self._since[1], 1e-9)
        examples = steps_a_second * self._batch_size
        return {"steps/s": steps_a_second, "examples/s": examples, "tokens/s": examples * self._tokens}

    def _scalars(self, step: int, group: str, values: Mapping[str, float]) -> None:
        # tf.summary.scalar needs the package tensorboard, which TensorFlow no longer brings; the format does not.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
        )
        with self._writer.as_default():
            for name, value in values.items():
                tag = f"{group}/{name.replace('/', '_per_')}"
                tf.summary.write(tag, tf.constant(value, tf.float32), step=step, metadata=metadata)

    def _say(self, text: str) -> None:
        say(text)

    def _emit(self, values: Mapping[str, object]) -> None:
        if self._as_json:
            print(json.dumps(values), flush=True)
