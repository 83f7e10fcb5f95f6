"""The tokenizers of the examples are named by every command that is shown."""

import pathlib
import re

import pytest

from tests import building

REPOSITORY = pathlib.Path(__file__).parents[2]
# Examples that go the whole way from raw text, with a tokenizer of `prep-tfrecords tokenizer`: see test_guide.py.
WHOLE = ("acceptability", "masked_lm")
SHOWN = [
    *(path for path in sorted((REPOSITORY / "examples").glob("*/README.md")) if path.parent.name not in WHOLE),
    REPOSITORY / "README.md",
    REPOSITORY / "docs" / "start" / "first-dataset.md",
    REPOSITORY / "scripts" / "quickstart",
]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_command_that_we_show_takes_the_tokenizer_of_its_example(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    builds = re.findall(r"prep-tfrecords build examples/(\w+) .*--tokenizer (\S+)", text)
    trained = re.findall(r"python examples/(\w+)/train_tokenizer.py (\S+)", text)
    assert builds
    for example, folder in builds:
        assert trained == [(building.tokenizer_name(example), folder)]
        assert folder == f"out/tokenizers/{trained[0][0]}"
