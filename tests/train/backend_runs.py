"""Training runs of one backend in one process, with the same initial weights; Keras has one backend per process:

    python -m tests.train.backend_runs jax '[["--data", ...], ["predict", ...]]'

Writes a line of JSON for each command line: its exit status, stdout and stderr.
"""

import dataclasses
import functools
import json
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.train import backends
from tests.building import Outcome
from tests.support import processes
from tests.train import training

__all__ = ["outcomes", "program", "run", "with_known_weights"]


def run(
    backend: str, commands: Sequence[Sequence[str]], *, variables: Mapping[str, str] = {}, how: Sequence[str] = ()
) -> list[Outcome]:
    """Run command lines of `train-tpu` in a process of a backend, with more environment variables. `how`: "nudged",
    with first weights that differ by one rounding; "float64", where all is computed in it; "one layer", of *-tiny.
    """
    words = [sys.executable, *program(backend, commands), *how]
    ended = processes.run(words, env={**processes.environment(), **variables})
    assert ended.returncode == 0, ended.stderr
    return outcomes(ended.stdout)


def program(backend: str, commands: Sequence[Sequence[str]]) -> list[str]:
    return ["-m", __name__, backend, json.dumps(commands)]


def outcomes(written: str) -> list[Outcome]:
    return [Outcome(**json.loads(line)) for line in written.splitlines() if line.startswith("{")]


def with_known_weights(build: Any, *, nudged: bool = False) -> Any:
    """Return `build`, which makes models, with matrices that are the same on any backend; vectors are, anyway."""

    def built(*arguments: Any) -> Any:
        made = build(*arguments)
        for number, variable in enumerate(made.model.trainable_variables):
            if len(variable.shape) > 1:
                draws = np.random.default_rng([5, number])
                values = draws.normal(scale=0.05, size=variable.shape).astype(np.float32)
                variable.assign(np.nextafter(values, np.float32(1)) if nudged else values)
        return made

    return built


def _compute_in_float64(backend: str) -> None:
    """Let Keras, the models and our own mathematics mean float64 where they say float32."""
    import keras
    from keras.src.backend.common import dtypes

    from pipelines.train import run  # noqa: F401  # all that computes is then imported
    from pipelines.train.tasks import BoundTask

    if backend == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.nn.dot_product_attention = _attention  # JAX's own takes its softmax in float32
        dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
    keras.config.set_floatx("float64")
    cast = keras.ops.cast

    def wider(values: Any, dtype: Any) -> Any:
        return cast(values, "float64" if dtype == "float32" else dtype)

    arange = keras.ops.arange  # of int64, in float64: KerasHub's T5 counts on int32
    keras.ops.arange = lambda *arguments, dtype="int32": arange(*arguments, dtype=dtype)
    ops = types.SimpleNamespace(**{**vars(keras.ops), "cast": wider})
    for name, module in sys.modules.items():
        if name.startswith("pipelines.train") and hasattr(module, "ops"):
            vars(module)["ops"] = ops
    kinds: tuple[Any, ...] = (BoundTask, *BoundTask.__subclasses__())
    for kind in kinds:
        kind.weights = functools.partialmethod(
            lambda task, *arguments, weights: wider(weights(task, *arguments), "float64"), weights=kind.weights
        )


def _attention(query: Any, key: Any, value: Any, *, bias: Any, mask: Any, scale: Any, **_: Any) -> Any:
    import jax.numpy as jnp
    from jax.nn import softmax

    scores = jnp.einsum("BTNH,BSNH->BNTS", query, key) * scale + (0.0 if bias is None else bias)
    scores = scores if mask is None else jnp.where(mask, scores, -1e300)
    return jnp.einsum("BNTS,BSNH->BTNH", softmax(scores), value)


def main() -> None:
    backend, commands, *how = sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:]
    backends.load(verbose=False, backend=backend)  # type: ignore[arg-type]
    from pipelines.train import models

    if "float64" in how:
        _compute_in_float64(backend)
    if "one layer" in how:
        from pipelines.train.models import backbones

        backbones._SIZES["tiny"] = (1, *backbones._SIZES["tiny"][1:])
    models.build = with_known_weights(models.build, nudged="nudged" in how)
    if backend == "jax":
        import jax

        jax.distributed.initialize = functools.cache(jax.distributed.initialize)  # a process joins others once
    for words in commands:
        print(json.dumps(dataclasses.asdict(training.run(words))), flush=True)


if __name__ == "__main__":
    main()
