"""Progress of a training: lines for people, JSON lines for programs, TensorBoard scalars for both.

    first call: 21.4 s, compiling included
    step    120/1,000  loss 0.6312  12.1 steps/s  387 examples/s  10,140 tokens/s  0.41 MFU

MFU is the share of the devices' peak that the step's arithmetic takes, by XLA's count, where JAX trains on a TPU.
The rates leave out the first call, which compiles, and the time of evaluating and saving. Lines come at once; scalars
are gathered for half a minute, since each write to gs:// sends the whole file again.
"""

import json
import time
from collections.abc import Callable, Mapping

import tensorflow as tf

from pipelines.terminal.console import say

_FLUSH_SECONDS = 30
_GATHERED = 10_000  # scalars, which are some 100 bytes each; TensorFlow would write after 10


class TrainingProgress:
    """Clock and writer of a training. `tokens_per_example` is the mean of the split, from the manifest; `peak_flops`
    those per second that one device can do, 0 if that is not known; `speaks`: False for all hosts but the first.
    """

    def __init__(
        self,
        *,
        log_dir: str,
        total: int,
        batch_size: int,
        tokens_per_example: float,
        as_json: bool,
        peak_flops: float = 0.0,
        speaks: bool = True,
    ) -> None:
        given: dict[str, int] = {"max_queue": _GATHERED, "flush_millis": _FLUSH_SECONDS * 1000}
        self._writer = tf.summary.create_file_writer(log_dir, **given) if speaks else tf.summary.create_noop_writer()
        self._speaks = speaks
        self._total = total
        self._batch_size = batch_size
        self._tokens = tokens_per_example
        self._as_json = as_json
        self._peak_flops = peak_flops
        self.running = False  # whether the clock was ever started
        self._since: tuple[int, float, float] | None = None
        self._clock: Callable[[], float] = time.monotonic

    def start_clock(self, step: int, *, flops: float = 0.0) -> None:
        """Rates count from here. `flops`: what one device has done so far."""
        self.running = True
        self._since = (step, self._clock(), flops)

    def training(self, step: int, *, loss: float, learning_rate: float, flops: float = 0.0) -> None:
        """After a call: the loss of its last step, and the rates since the last line."""
        rates = self._rates(step, flops)
        self._scalars(step, "train", {"loss": loss, "learning_rate": learning_rate, **rates})
        shown = "  ".join(f"{value:,.{0 if value >= 100 else 2}f} {name}" for name, value in rates.items())
        self.note(f"step {step:>7,}/{self._total:,}  loss {loss:.4f}  {shown}".rstrip())
        self._emit({"step": step, "loss": loss, "learning_rate": learning_rate, **rates})

    def evaluation(self, step: int, *, split: str, metrics: Mapping[str, float], examples: int) -> None:
        """After a whole pass."""
        self._scalars(step, split, metrics)
        self._writer.flush()  # rare, and what people wait for
        shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self.note(f"step {step:>7,}/{self._total:,}  {split}: {shown}  ({examples:,} examples)")
        self._emit({"step": step, "split": split, "examples": examples, **metrics})

    def note(self, text: str) -> None:
        """A line for people."""
        if self._speaks:
            say(text)

    def close(self) -> None:
        """Write what TensorBoard has not yet."""
        self._writer.close()

    def _rates(self, step: int, flops: float) -> dict[str, float]:
        if self._since is None or step <= self._since[0]:
            return {}
        first, began, done = self._since
        seconds = max(self._clock() - began, 1e-9)
        examples = (step - first) / seconds * self._batch_size
        rates = {"steps/s": (step - first) / seconds, "examples/s": examples, "tokens/s": examples * self._tokens}
        if self._peak_flops and flops > done:
            rates["MFU"] = (flops - done) / seconds / self._peak_flops
        return rates

    def _scalars(self, step: int, group: str, values: Mapping[str, float]) -> None:
        # tf.summary.scalar needs the package tensorboard, which TensorFlow no longer brings; the format does not.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
        )
        with self._writer.as_default():
            for name, value in values.items():
                tag = f"{group}/{name.replace('/', '_per_')}"
                tf.summary.write(tag, tf.constant(value, tf.float32), step=step, metadata=metadata)

    def _emit(self, values: Mapping[str, object]) -> None:
        if self._as_json and self._speaks:
            print(json.dumps(values), flush=True)
