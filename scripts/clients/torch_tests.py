"""Run this project's tests that need PyTorch."""

import contextlib
import io
import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "tfrecord_io"
FILES = (TESTS / "random_access" / "test_random_access_trainers.py", TESTS / "test_same_rows.py")

if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main(["-q", "-k", "Torch or PyTorch", *map(str, FILES)])
    print(output.getvalue() if status else output.getvalue().splitlines()[-1])
    sys.exit(status)
