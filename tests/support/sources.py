"""The parsed modules of the repository, each parsed once per process."""

import ast
import functools
from collections.abc import Mapping

from tests.support.processes import REPOSITORY


@functools.cache
def modules(package: str) -> Mapping[str, ast.Module]:
    """Return every module below a top-level folder by its path in the repository."""
    paths = sorted((REPOSITORY / package).rglob("*.py"))
    return {str(path.relative_to(REPOSITORY)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
