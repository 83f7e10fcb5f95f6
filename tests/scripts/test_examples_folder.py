"""The tokenizers of the examples: made again byte by byte, and named by every command that is shown."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests import building

REPOSITORY = pathlib.Path(__file__).parents[2]
# The examples that have a tokenizer of their own; the reviews' serves all others.
OWN = ("chats", "reviews", "translations")
# Examples that go the whole way from raw text, with a tokenizer of `prep-tfrecords tokenizer`: see test_guide.py.
WHOLE = ("acceptability", "masked_lm")
SHOWN = [
    *(path for path in sorted((REPOSITORY / "examples").glob("*/README.md")) if path.parent.name not in WHOLE),
    REPOSITORY / "README.md",
    REPOSITORY / "docs" / "start" / "first-dataset.md",
    REPOSITORY / "scripts" / "quickstart",
]


@pytest.mark.slow
@pytest.mark.parametrize("example", OWN)
def test_a_tokenizer_script_writes_the_same_bytes_in_every_process(example: str, tmp_path: pathlib.Path) -> None:
    script = REPOSITORY / "examples" / example / "train_tokenizer.py"
    environment = {**os.environ, "PYTHONHASHSEED": "2"}
    subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment, check=True, capture_output=True)
    assert building.files(tmp_path) == building.files(building.tokenizer(example))
    assert (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_command_that_we_show_takes_the_tokenizer_of_its_example(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    builds = re.findall(r"prep-tfrecords build examples/(\w+) .*--tokenizer (\S+)", text)
    trained = re.findall(r"python examples/(\w+)/train_tokenizer.py (\S+)", text)
    assert builds
    for example, folder in builds:
        assert trained == [(example if example in OWN else "reviews", folder)]
        assert folder == f"out/tokenizers/{trained[0][0]}"
