"""What `train-tpu predict` refuses, with a remedy, before it predicts anything."""

import shutil
from pathlib import Path

import pytest

from tests import building
from tests.train import training
from tests.train.finished import command, done, finished

BAG = "tests.train.small:bag"


def refused(tmp_path: Path, **changes: object) -> tuple[str, str]:
    """Return cause and remedy of a prediction that is valid except for `changes`."""
    options = {"model": finished("classify", BAG), "data": training.data(), "split": "validation", "tpu": "none"}
    outcome = command("predict", **{**options, "output": tmp_path / "p.parquet", **changes})
    assert not (tmp_path / "p.parquet").exists() or "exists already" in outcome.err
    return outcome.error


def test_data_of_another_tokenizer_names_both(tmp_path: Path) -> None:
    tokenizer = tmp_path / "other"
    shutil.copytree(building.tokenizer(), tokenizer)
    config = tokenizer / "tokenizer_config.json"
    config.write_text(config.read_text(encoding="utf-8").replace("128", "127"), encoding="utf-8")
    data = building.reviews(max_length=16, tokenizer=tokenizer)
    cause, remedy = refused(tmp_path, data=data)
    assert "'other'" in cause
    assert "'reviews-tokenizer'" in cause
    assert "/tokenizer" in remedy


def test_a_file_that_is_there_is_replaced_only_if_asked_for(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_bytes(b"mine")
    assert "exists already" in refused(tmp_path)[0]
    assert (tmp_path / "p.parquet").read_bytes() == b"mine"
    options = {"model": finished("classify", BAG), "data": training.data(), "split": "validation", "tpu": "none"}
    assert command("predict", output=tmp_path / "p.parquet", overwrite=True, **options).status == 0
    assert (tmp_path / "p.parquet").read_bytes() != b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output": "p.csv"}, "ends in .parquet or .jsonl"),
        ({"output": None}, "no --output"),
        ({"data": None}, "no --data"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"beams": 2}, "--beams 2 with a model for classify"),
        ({"generate": 3}, "--generate with a model for classify"),
        ({"model": "nowhere"}, "--model-dir of a finished training run"),
        ({"data": "nowhere"}, "no such folder"),
        ({"fill_mask": "a [MASK]"}, "--fill-mask was given with --data"),
        ({"build": "tests.train.small:apart"}, "do not fit"),
        ({"build": "apart"}, "expected package.module:function"),
        ({"split": "test"}, "--split test"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    assert words in refused(tmp_path, **changes)[0]


@pytest.mark.parametrize(
    ("options", "lengths", "remedy"),
    [
        ({}, "32", "--max-length 16, without --bucket-lengths"),
        ({"max_length": 24, "bucket_lengths": "8,16,24"}, "8 or 16 or 24", "--max-length 16, without --bucket-lengths"),
    ],
)
def test_other_row_lengths_are_refused(tmp_path: Path, options: dict[str, object], lengths: str, remedy: str) -> None:
    error = refused(tmp_path, data=building.reviews(**options))
    assert f"rows have a length of {lengths}, but the model was trained on rows of 16" in error[0]
    assert error[1] == f"build the data with {remedy}"


@pytest.mark.slow
def test_more_tokens_than_a_row_has_are_refused(tmp_path: Path) -> None:
    cause, _ = refused(tmp_path, model=finished("clm", "gpt2-tiny"), generate=16)
    assert "rows have 16 tokens, including the prompt" in cause


@pytest.mark.slow
def test_a_model_whose_file_names_code_is_loaded_by_the_function_that_made_it(tmp_path: Path) -> None:
    # Its Lambda layer holds code, which Keras does not run by default.
    data = building.built(building.REVIEWS, layout="pack", max_length=16)
    model = finished("clm", "tests.train.small:apart", data=data)
    cause, remedy = refused(tmp_path, model=model, data=data)
    assert "tests.train.small:apart" in cause
    assert remedy.startswith("give --build tests.train.small:apart")
    arguments = {"model": model, "data": data, "split": "validation", "tpu": "none", "output": tmp_path / "p.parquet"}
    done("predict", build="tests.train.small:apart", **arguments)


def test_a_masked_model_has_nothing_to_say_of_rows(tmp_path: Path) -> None:
    cause, remedy = refused(tmp_path, model=finished("mlm", "tests.train.small:at_positions"))
    assert "trained for mlm" in cause
    assert "--fill-mask" in remedy
