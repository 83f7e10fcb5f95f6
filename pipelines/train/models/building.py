"""Puts a model together: the user's own, or a backbone of KerasHub with a head."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import keras

from pipelines.train.config import Pooling, TrainConfig
from pipelines.train.errors import said
from pipelines.train.models import backbones, checks, heads, names, packed_rows
from pipelines.train.tasks import BoundTask
from tfrecord_io.errors import ConfigError, PrepError
from tfrecord_io.manifest import Manifest

__all__ = ["Built", "build", "build_again", "users_model"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """A model, and the KerasHub backbone in it; None in the user's. `pooling`: of classify, how rows are pooled."""

    model: keras.Model
    backbone: Any = None
    pooling: Pooling | None = None

    @property
    def description(self) -> dict[str, Any] | None:
        """The backbone as JSON, from which `build_again` makes one like it."""
        if self.backbone is None:
            return None
        config = keras.saving.serialize_keras_object(self.backbone)["config"]
        return {"class": type(self.backbone).__name__, "config": config}


def build(config: TrainConfig, manifest: Manifest, task: BoundTask) -> Built:
    """The model; call it inside the strategy's scope.

    Raises: ConfigError if there is no such model, or it does not fit the dataset or the task.
    """
    names.require_known(config.model)
    if names.is_users(config.model):
        if config.from_scratch:
            raise ConfigError(
                f"--from-scratch with --model {config.model}, expected a preset: where weights of yours come from is "
                "known only to your function",
                remedy="leave out --from-scratch",
            )
        built = Built(model=users_model(config.model, manifest))
    else:
        built = _hub_model(config, manifest, task)
    checks.check_sizes(built.model, config=config, manifest=manifest)
    checks.check_logits(built.model, config=config, manifest=manifest, task=task)
    return built


def build_again(backbone: Mapping[str, Any], manifest: Manifest, task: BoundTask, *, pooling: Pooling | None) -> Built:
    """The model that `build` made of a backbone (`Built.description`), with other weights.

    Raises: ConfigError if KerasHub has no such backbone.
    """
    family = getattr(names.keras_hub(str(backbone["class"])).models, str(backbone["class"]), None)
    if family is None or not str(backbone["class"]).endswith("Backbone"):
        raise ConfigError(
            f"a model of a {backbone['class']!r:.100}, which this version of KerasHub does not have",
            remedy="use the version that the model was trained with",
        )
    made = family.from_config(backbone["config"])
    model = heads.with_head(made, manifest, task, pooling=pooling or "first")
    return Built(model=model, backbone=made, pooling=pooling)


def _hub_model(config: TrainConfig, manifest: Manifest, task: BoundTask) -> Built:
    """A backbone of KerasHub with a head."""
    backbone = backbones.make(config, manifest)
    backbones.check(backbone, config=config)
    if manifest.schema.with_role("segment_ids") is not None:
        packed_rows.require(backbone, config=config, manifest=manifest)
    pooling = config.pooling
    if pooling == "auto":
        scratch = names.from_scratch(config.model)
        pooling = "last" if backbones.is_causal(backbone) else "mean" if scratch else "first"
    model = heads.with_head(backbone, manifest, task, pooling=pooling)
    return Built(model=model, backbone=backbone, pooling=pooling if config.task == "classify" else None)


def users_model(spec: str, manifest: Manifest) -> keras.Model:
    """Return what the user's function makes. Raises: ConfigError if it cannot be imported, fails or gives no model."""
    module_name, _, function = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a console script does not
    try:
        build_model = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"--model {spec}: {error}, expected a function {function!r} in a module {module_name!r} that can be "
            "imported from here",
            remedy="run from the folder that holds the module, or set PYTHONPATH",
        ) from error
    try:
        model = build_model(manifest)
    except PrepError:
        raise
    except Exception as error:
        raise ConfigError(
            f"--model {spec}: {function}(manifest) failed ({said(error)})", remedy="--verbose shows where"
        ) from error
    if not isinstance(model, keras.Model):
        raise ConfigError(f"--model {spec}: {function}(manifest) gave {type(model).__name__}, expected a keras.Model")
    return model
