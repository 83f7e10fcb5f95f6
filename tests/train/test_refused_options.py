"""Options refused before any step, with their messages."""

from pathlib import Path

import keras_hub
import pytest
import tensorflow as tf

from pipelines.train.models import backbones
from tests import building
from tests.support import seams
from tests.train import training
from tfrecord_io.errors import ConfigError

SMALL = "tests.train.small"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": f"{SMALL}:narrow"}, "the model's vocabulary has 10 entries"),
        ({"model": f"{SMALL}:wide"}, "shape [B, 3], expected logits [B, 2]"),
        ({"model": f"{SMALL}:broken"}, "KeyError"),
        ({"model": f"{SMALL}:nothing"}, "expected a keras.Model"),
        ({"model": f"{SMALL}:absent"}, "absent"),
        ({"model": "no_such_module:build"}, "no_such_module"),
        ({"model": "bert-huge"}, "SIZE: tiny, "),
        ({"model": "bert-tiny", "task": "clm"}, "an encoder, which sees later tokens"),
        ({"model": "gpt2-tiny", "task": "mlm"}, "a decoder"),
        ({"model": "./no-such-folder"}, "there is no such model"),
        ({"model": "hf://nobody/nothing"}, "cannot be loaded"),
        ({"num_labels": 5}, "--num-labels 5"),
        ({"data": "no-such-folder"}, "no-such-folder: no such folder"),
        ({"data": training.__file__}, "training.py: not a folder"),
        ({"data": ""}, "no --data"),
        ({"eval_split": "holdout"}, "--eval-split holdout"),
        ({"keep_best": True, "eval_every": 2, "best_metric": "mae"}, "dataset: loss or accuracy or f1 or macro_f1 or "),
        ({"global_batch_size": 16, "accumulate": 5}, "16 on 1 replica with --accumulate 5, expected a multiple of 5"),
    ],
)
def test_a_model_or_data_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    outcome = training.command(tmp_path, **changes)
    assert outcome.status == (1 if "folder" in words else 2)
    cause, remedy = outcome.error
    assert words in cause
    assert remedy


def test_a_training_needs_a_folder_to_write_to_and_a_preflight_needs_none() -> None:
    cause, remedy = training.command(None).error
    assert cause.startswith("no --model-dir")
    assert "--preflight" in remedy
    assert training.command(None, preflight="v3-7").error[0].startswith("--preflight 'v3-7'"), "the slice is wrong"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bert-tyni", "bert-tiny"),
        ("BERT_base", "bert-base"),
        ("gpt-small", "gpt2-small"),
        ("bert_base_en_uncasd", "bert_base_en_uncased"),
        ("google-bert/bert-base-uncased", "hf://google-bert/bert-base-uncased"),
        ("mymodel.py", "mymodel:build"),
        ("package.mymodel.make", "package.mymodel:make"),
        *((name, "") for name in ("bert-tiny", "gpt2_base_en", "mymodel:build", "hf://owner/name", ".")),
    ],
)
def test_a_name_that_is_nearly_a_model_leads_to_it_and_a_name_of_one_is_taken(name: str, meant: str) -> None:
    lines = ("", "")
    try:
        backbones.require_known(name)
    except ConfigError as error:
        lines = error.cause, error.remedy
    assert ("there is no such model" in lines[0]) == bool(meant)
    assert lines[1].startswith(f"did you mean --model {meant}" if meant else "")


@pytest.mark.parametrize(
    ("layout", "task", "allowed"),
    [("pad", "tokens", "classify, mlm, clm"), ("concat", "classify", "mlm, clm"), ("concat", "tokens", "mlm, clm")],
)
def test_a_task_not_for_the_dataset_leads_to_another_one(tmp_path: Path, layout: str, task: str, allowed: str) -> None:
    data = training.data() if layout == "pad" else building.built(building.REVIEWS, layout=layout)
    outcome = training.command(tmp_path, data=data, task=task)
    cause, remedy = outcome.error
    assert outcome.status == 2
    assert cause.startswith(f"--task {task}: ")
    assert remedy.endswith(f"this dataset supports --task {allowed}")


@pytest.mark.parametrize(("batch", "replicas", "fitting"), [(32, 3, "30 or 33"), (3, 4, "4"), (32, 64, "64")])
def test_a_batch_not_for_the_replicas_leads_to_another(tmp_path: Path, batch: int, replicas: int, fitting: str) -> None:
    _, remedy = training.command(tmp_path, global_batch_size=batch, replicas=replicas).error
    assert remedy == f"give --global-batch-size {fitting}"


def test_a_folder_of_data_is_no_place_for_a_model() -> None:
    before = building.files(training.data())
    cause, _ = training.command(training.data()).error
    assert "contains a dataset" in cause
    assert building.files(training.data()) == before


def test_a_file_is_no_place_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cause, _ = training.command(tmp_path / "file").error
    assert cause == f"--model-dir {tmp_path}/file: the folder cannot be used ({tmp_path}/file is not a directory)"


def test_too_little_memory_is_not_blamed_on_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[1024,1024]")
    seams.put(monkeypatch, train=seams.raising(error))
    cause, remedy = training.command(tmp_path).error
    assert "out of memory" in cause
    assert remedy.startswith("give --accumulate, a smaller --global-batch-size")


def test_the_folder_of_a_finished_training_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ConfigError, match="the folder of a finished training run") as caught:
        backbones.require_known(str(tmp_path))
    assert caught.value.remedy.startswith(f"to continue that training run, give --model-dir {tmp_path}")


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preset")
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=50, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16, max_sequence_length=32
    )
    backbone.save_to_preset(str(folder))
    return folder


@pytest.mark.slow
def test_a_presets_architecture_gets_the_vocabulary_of_the_data(tmp_path: Path, preset: Path) -> None:
    refused = training.command(tmp_path / "pretrained", model=preset)
    assert "the model's vocabulary has 50 entries" in refused.error[0]
    training.done(tmp_path / "model", model=preset, from_scratch=True, steps=2)
    again = training.command(tmp_path / "model", model=preset, steps=4)
    assert "from_scratch True, now False" in again.error[0]


def test_a_function_of_the_users_says_itself_where_weights_come_from(tmp_path: Path) -> None:
    cause, _ = training.command(tmp_path, from_scratch=True).error
    assert cause.startswith("--from-scratch with --model tests.train.small:bag")
