"""Report the progress of a training run: lines for people, JSON lines for programs, scalars for TensorBoard.

MFU (model FLOPs utilization), only with JAX on a TPU, is the used share of the devices' peak rate, as XLA counts
FLOPs. Rates exclude compiling, evaluating and saving. Scalars are buffered: each write to gs:// sends the whole file.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping

import tensorflow as tf

from pipelines.terminal.console import say
from tfrecord_io.shown import some

_FLUSH_SECONDS = 30
_BUFFERED = 10_000  # scalars of about 100 bytes


@dataclasses.dataclass(kw_only=True)
class TrainingProgress:
    """Report the progress of a training run, and measure its rates.

    `total`: steps of the whole run. `tokens_per_example`: returns the mean at a step. `peak_flops`: per second and
    device, 0 if unknown. `speaks`: whether this process reports. `since`: step, time and FLOPs at which the measurement
    of rates began; None before.
    """

    log_dir: str
    total: int
    batch_size: int
    tokens_per_example: Callable[[int], float]
    as_json: bool
    peak_flops: float = 0.0
    speaks: bool = True
    since: tuple[int, float, float] | None = None

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {"max_queue": _BUFFERED, "flush_millis": _FLUSH_SECONDS * 1000}
        self._writer = (
            tf.summary.create_file_writer(self.log_dir, **sizes) if self.speaks else tf.summary.create_noop_writer()
        )

    def start_clock(self, step: int, *, flops: float = 0.0) -> None:
        """Measure rates from this step on. `flops`: FLOPs of one device so far."""
        self.since = (step, time.monotonic(), flops)

    def training(self, step: int, *, loss: float, learning_rate: float, flops: float = 0.0) -> None:
        """Report a step's loss and learning rate, and the rates. `flops`: FLOPs of one device so far."""
        rates = self._rates(step, flops)
        self._scalars(step, "train", {"loss": loss, "learning_rate": learning_rate, **rates})
        shown = "  ".join(f"{value:,.{0 if value >= 100 else 2}f} {name}" for name, value in rates.items())
        self.note(f"step {step:>7,}/{self.total:,}  loss {loss:.4f}  {shown}".rstrip())
        self._emit({"step": step, "loss": loss, "learning_rate": learning_rate, **rates})

    def evaluation(self, step: int, *, split: str, metrics: Mapping[str, float], examples: int) -> None:
        self._scalars(step, split, metrics)
        self._writer.flush()  # people wait for evaluations
        shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self.note(f"step {step:>7,}/{self.total:,}  {split}: {shown}  ({some(examples, 'example')})")
        self._emit({"step": step, "split": split, "examples": examples, **metrics})

    def note(self, text: str) -> None:
        if self.speaks:
            say(text)

    def close(self) -> None:
        self._writer.close()

    def _rates(self, step: int, flops: float) -> dict[str, float]:
        if self.since is None or step <= self.since[0]:
            return {}
        first, began, done = self.since
        seconds = max(time.monotonic() - began, 1e-9)
        steps, examples = (step - first) / seconds, (step - first) / seconds * self.batch_size
        rates = {"steps/s": steps, "examples/s": examples, "tokens/s": examples * self.tokens_per_example(step - 1)}
        if self.peak_flops and flops > done:
            rates["MFU"] = (flops - done) / seconds / self.peak_flops
        return rates

    def _scalars(self, step: int, group: str, values: Mapping[str, float]) -> None:
        # tf.summary.scalar would need the package tensorboard.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
        )
        with self._writer.as_default():
            for name, value in values.items():
                tag = f"{group}/{name.replace('/', '_per_')}"
                tf.summary.write(tag, tf.constant(value, tf.float32), step=step, metadata=metadata)

    def _emit(self, values: Mapping[str, object]) -> None:
        if self.as_json and self.speaks:
            print(json.dumps(values), flush=True)
