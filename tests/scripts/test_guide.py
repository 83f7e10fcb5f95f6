"""The guide's examples run from beginning to end, like for a reader, and reach the results on their pages.

Each script and each notebook runs once, in a clean copy of the examples: a notebook's cells in an IPython kernel, a
script's commands as the shell reports them. Programs run in the process of the kernel or of the test, since most of
the time of a short one is for importing TensorFlow.
"""

import ast
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient
from sklearn.metrics import matthews_corrcoef

from pipelines.train.models import backbones
from tests import building
from tests.building import REPOSITORY
from tests.support import in_process

pytestmark = pytest.mark.longest

NOTEBOOKS = sorted((REPOSITORY / "examples" / "notebooks").glob("*.ipynb"))


def environment() -> dict[str, str]:
    """The programs of this environment, on this repository's packages, without a network or a GPU."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return {**building.environment(), **offline, "PATH": path}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guide")
    shutil.copytree(REPOSITORY / "examples", folder / "examples")
    return folder


# A program that writes down its words, and does nothing.
NOTES = """#!/bin/bash
{ printf '%q ' "${0##*/}" "$@"; echo; } >>"$NOTES"
"""


def commands_of(script: str, *, folder: Path) -> list[list[str]]:
    """The command lines of a script in order, as bash understands it."""
    notes, programs = folder / "notes", folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("prep-tfrecords", "python", "train-tpu"):
        (programs / name).write_text(NOTES)
        (programs / name).chmod(0o755)
    notes.unlink(missing_ok=True)
    variables = {**os.environ, "NOTES": str(notes), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", script], cwd=folder, env=variables, check=True)
    return [shlex.split(line) for line in notes.read_text().splitlines()]


def run_script(script: str, *shorter: str, folder: Path) -> str:
    """Return the output of a script's programs, which must all succeed.

    A training run has one layer, and `shorter` as its last options. A preflight, of half a minute, is left
    out, since it has separate tests.
    """
    printed = ""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setitem(backbones._SIZES, "tiny", (1, 2, 128))
        for words in commands_of(script, folder=folder):
            if "--preflight" not in words and "-c" not in words:
                outcome = in_process.run([*words, *(shorter if words[:2] == ["train-tpu", "--data"] else ())])
                assert outcome.status == 0 or "check.py" in words[1], outcome.err  # so few steps teach too little
                printed += outcome.out + outcome.err
    return printed


@pytest.fixture(scope="module")
def masked_lm(copy: Path) -> str:
    return run_script("examples/masked_lm/run.sh", "--steps", "10", "--warmup", "2", folder=copy)


@pytest.fixture(scope="module")
def acceptability(copy: Path) -> str:
    return run_script("examples/acceptability/run.sh", "--epochs", "6", "--learning-rate", "1e-3", folder=copy)


@pytest.mark.slow
class TestMaskedLanguageModel:
    def test_gaps_are_filled_and_counted(self, masked_lm: str) -> None:
        assert re.search(r"^\d+ of 26 gaps filled with the right word$", masked_lm, re.M), masked_lm
        assert re.search(r"▁\w+", masked_lm.partition(" token ")[2]), "a table of words for the gap of the page"

    def test_a_reader_opens_the_exported_folder(self, masked_lm: str, copy: Path) -> None:
        folder = copy / "out" / "masked_lm" / "exported"
        names = {path.name for path in folder.iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert (config["architectures"], config["vocab_size"]) == (["BertForMaskedLM"], 65)


@pytest.mark.slow
class TestAcceptability:
    def test_every_row_of_the_test_split_is_predicted_once_in_order(self, acceptability: str, copy: Path) -> None:
        assert "without label in test: 200 of 200 examples" in acceptability
        rows = pq.read_table(copy / "out" / "acceptability" / "test.parquet").to_pylist()
        assert [row["row"] for row in rows] == list(range(200))
        assert {row["label_id"] for row in rows} == {None}
        assert all(sum(row["probabilities"]) == pytest.approx(1, abs=1e-5) for row in rows)

    def test_predictions_agree_with_the_true_labels(self, acceptability: str, copy: Path) -> None:
        truth = runpy.run_path(str(copy / "examples" / "acceptability" / "make_data.py"))["splits"]()["test"]
        rows = pq.read_table(copy / "out" / "acceptability" / "test.parquet").to_pylist()
        correlation = matthews_corrcoef([row["label"] for row in truth], [row["prediction_id"] for row in rows])
        assert correlation > 0.3, "chance gives 0; the whole training run gives 0.99 or 1.0"


def test_the_data_of_acceptability_are_those_of_its_script() -> None:
    folder = REPOSITORY / "examples" / "acceptability"
    for split, rows in runpy.run_path(str(folder / "make_data.py"))["splits"]().items():
        lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        hidden = {"label": -1} if split == "test" else {}
        assert [json.loads(line) for line in lines] == [{**row, **hidden} for row in rows]
    assert sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) < 400_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_of_format_4_5_and_holds_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell_id) for cell_id in ids)
    for cell in notebook["cells"]:
        assert cell.keys() - {"outputs", "execution_count"} == {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_that_need_the_cloud_are_marked_and_no_others(path: Path) -> None:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        needs = re.search(r"pip install|google\.colab|kaggle_secrets|doctor|--preflight", "".join(cell["source"]))
        if cell["cell_type"] == "code":
            assert (cell["metadata"].get("tags") == ["needs-cloud"]) == bool(needs), cell["id"]


@pytest.fixture(scope="module")
def cells(copy: Path) -> dict[str, Any]:
    """The cells of all notebooks by id, with their outputs, after one kernel has run those that need no cloud."""
    whole = nbformat.v4.new_notebook()
    for path in NOTEBOOKS:
        others = nbformat.read(path, as_version=4).cells
        local = [cell for cell in others if "needs-cloud" not in cell.metadata.get("tags", ())]
        whole.cells += [nbformat.v4.new_code_cell(source) for source in ("%reset -f", IN_KERNEL)] + local
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(copy)
        for name, value in environment().items():
            patched.setenv(name, value)
        NotebookClient(whole, timeout=None, kernel_name="python3").execute()
    return {cell.id: cell for cell in whole.cells}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_other_cells_of_a_notebook_run(path: Path, copy: Path, cells: dict[str, Any]) -> None:
    made = copy / "out" / ("colab" if path.stem == "colab" else "kaggle")
    if path.stem == "colab":
        assert pq.read_table(made / "test.parquet").num_rows == 200
        assert 0 < ast.literal_eval(shown(cells["colab-fit"])[-1])["cross_entropy"] < 1
    else:
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in made.glob("exported/*")}
    build = cells[f"{path.stem.partition('_')[0]}-build"]
    assert re.match(r"Built\(root='out/\w+/data', shards_made=\d, ", shown(build)[-1])
    assert [output.output_type for output in build.outputs] == ["execute_result"], "nothing but the result is printed"


# Without them, `!` starts processes. A training run of epochs takes ten steps.
IN_KERNEL = """
import shlex, sys
from pipelines.train.models import backbones
from tests.support import in_process

def run(line):
    words = shlex.split(get_ipython().var_expand(line, depth=1))
    outcome = in_process.run([*words, *(["--epochs", "0.2"] if "--epochs" in words else [])])
    print(outcome.out + outcome.err)
    assert outcome.status == 0

backbones._SIZES["tiny"] = (1, 2, 128)
get_ipython().system = run
"""


def shown(cell: Any) -> list[str]:
    return [output.text if output.output_type == "stream" else output.data["text/plain"] for output in cell.outputs]
