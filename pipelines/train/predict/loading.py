"""Load the model and the tokenizer from the folder of a finished training run."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from pipelines.train import model_files, models, tasks
from pipelines.train.config import TrainConfig
from pipelines.train.errors import said
from pipelines.train.model_files import TrainedModel
from pipelines.train.models import BuiltModel, backbones, fit
from tfrecord_io import local_paths
from tfrecord_io.errors import ConfigError, FormatError, PrepError, ReaderError


def load_model(model_dir: str, trained: TrainedModel, *, build: str | None = None) -> BuiltModel:
    """Load a finished model from its folder. With TensorFlow, call this inside the strategy's scope.

    `build`: the user's function that built the model, if any; no other code of the user runs. Raises: ReaderError;
    ConfigError if `build` is missing or makes another model.
    """
    if build is not None and not backbones.is_users(build):
        raise ConfigError(
            f"--build {build}, expected package.module:function", remedy="give the function that built the model"
        )
    if build is None and trained.backbone is None:
        with local_copy(f"{model_dir.rstrip('/')}/model.keras") as path:
            try:
                return BuiltModel(model=keras.models.load_model(path, compile=False, safe_mode=True))
            except Exception as error:  # from any layer's deserialization
                raise ConfigError(
                    f"--model {model_dir}: the model was built by {trained.model}, and its file does not contain the "
                    f"code of its layers ({said(error)})",
                    remedy=f"give --build {trained.model}, which imports this code",
                ) from error
    with local_copy(f"{model_dir.rstrip('/')}/model.weights.h5") as path:
        if build is not None:
            built = BuiltModel(model=models.users_model(build, trained.manifest))
        else:
            built = _rebuilt(model_dir, trained, stored=fit.in_hdf5(path))
        try:
            built.model.load_weights(path)
        except Exception as error:
            if build is None:
                raise
            raise ConfigError(
                f"--build {build}: the weights of --model {model_dir} do not fit the model ({said(error)})",
                remedy=f"give the function that built the model: --build {trained.model}",
            ) from error
    return built


def load_reference(model_dir: str, trained: TrainedModel, *, build: str | None = None) -> BuiltModel:
    """Load a finished model, but with the weights of its reference model. Arguments: as for `load_model`."""
    built = load_model(model_dir, trained, build=build)
    with local_copy(f"{model_dir.rstrip('/')}/{model_files.REFERENCE}") as path:
        built.model.load_weights(path)
    return built


def _rebuilt(model_dir: str, trained: TrainedModel, *, stored: list[int]) -> BuiltModel:
    assert trained.backbone is not None, "a user's model is loaded in another way"
    named = trained.manifest.label_names is not None or tasks.TASKS[trained.task].labels is None
    config = TrainConfig(
        data=model_dir,
        task=trained.task,
        model=trained.model,
        mask_probability=trained.mask_probability,
        decoder_start=trained.decoder_start or "auto",
        num_labels=None if named else trained.num_outputs,
    )
    task = tasks.bind(config, trained.manifest)
    # Checked before memory is allocated for more weights than the file has.
    kind, sizes = str(trained.backbone["class"]), trained.backbone["config"]
    if entry := fit.misfit(kind, sizes, stored, outputs=max(trained.num_outputs, task.num_outputs)):
        raise _damaged(model_dir, entry)
    try:
        return models.build_again(trained.backbone, trained.manifest, task, pooling=trained.pooling)
    except PrepError:
        raise
    except Exception as error:  # from any layer
        raise _damaged(model_dir, said(error)) from error


def _damaged(model_dir: str, problem: str) -> FormatError:
    return FormatError(
        f"{model_dir.rstrip('/')}/model.json: a model with this description cannot be built ({problem})",
        remedy="copy the folder again from its origin, or run the training run's command again",
    )


def load_tokenizer(model_dir: str) -> Any:
    """Load the tokenizer in a finished model's folder, with `transformers`. Raises: ReaderError."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # hides a warning about PyTorch
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        model_files.copy_tokenizer(model_dir, folder)
        if entry := local_paths.file_outside(folder):
            raise ReaderError(
                f"{model_dir.rstrip('/')}/{model_files.TOKENIZER}: {entry}, expected no file outside of this folder",
                remedy="if you trust the model, remove this entry",
            )
        try:
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # damaged files raise many types
            raise ReaderError(
                f"{model_dir.rstrip('/')}/{model_files.TOKENIZER}: cannot be loaded ({said(error)})",
                remedy="copy the folder tokenizer/ of the dataset to this folder",
            ) from error


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Yield the path of a temporary copy of a file, local or gs://, for libraries that read only local files.

    Raises: ReaderError, also if the body of the `with` statement fails.
    """
    local_paths.require_regular(path)
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(path))
        try:
            tf.io.gfile.copy(path, copy)
            yield copy
        except PrepError:
            raise
        except Exception as error:  # from TensorFlow, h5py or Keras
            raise ReaderError(
                f"{path}: cannot be loaded ({said(error)})",
                remedy="run the training run's command again to write this file",
            ) from error
