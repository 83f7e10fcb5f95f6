"""Protection of the root logger, which belongs to the caller."""

import contextlib
import logging
from collections.abc import Iterator


class _Nameless(logging.Handler):
    """Like `logging.lastResort`, minus records of the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        last = logging.lastResort
        if record.name != "root" and last is not None and record.levelno >= last.level:
            last.handle(record)


@contextlib.contextmanager
def root_logger_kept() -> Iterator[None]:
    """Keep libraries from configuring the root logger during the context.

    Beam does so on import, and the caller's `logging.basicConfig` would then have no effect.
    """
    root, ours = logging.getLogger(), _Nameless()
    if root.handlers:
        yield
        return
    root.addHandler(ours)
    try:
        yield
    finally:
        root.removeHandler(ours)
