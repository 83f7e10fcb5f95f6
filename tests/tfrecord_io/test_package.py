"""`import tfrecord_io` and no more: its modules come when they are used."""

import re
import sys

import pytest

import tfrecord_io
from tests import building
from tests.support import pages, processes

# As a new user types it, in a process where nothing is imported yet.
USED_AT_ONCE = """
import sys
import tfrecord_io
assert "tensorflow" not in sys.modules, "not before it is needed"
assert not any(name.startswith("tfrecord_io.") for name in sys.modules)
assert {"reader", "errors", "__version__"} <= set(dir(tfrecord_io))
assert tfrecord_io.errors.PrepError.__name__ == "PrepError"
assert "tensorflow" not in sys.modules
try:
    tfrecord_io.no_such_name
except AttributeError as error:
    print(error)
"""


def test_a_module_is_imported_when_it_is_used_and_no_sooner() -> None:
    ended = processes.run([sys.executable, "-c", USED_AT_ONCE])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "module 'tfrecord_io' has no attribute 'no_such_name'\n"


def test_the_type_checker_sees_the_same_modules() -> None:
    source = (building.REPOSITORY / "tfrecord_io" / "__init__.py").read_text(encoding="utf-8")
    assert set(re.findall(r"from tfrecord_io import (\w+) as \1\n", source)) == tfrecord_io._MODULES


@pytest.mark.parametrize("document", pages.pages())
def test_every_module_that_a_document_names_is_there(document: str) -> None:
    text = (building.REPOSITORY / document).read_text(encoding="utf-8")
    named = set(re.findall(r"tfrecord_io\.([a-z_]+)", text))
    for names in re.findall(r"from tfrecord_io import ([\w, ]+)", text):
        named |= set(names.split(", "))
    assert named <= tfrecord_io._MODULES
