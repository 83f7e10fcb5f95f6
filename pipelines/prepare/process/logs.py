"""Protection of the root logger, which belongs to the caller."""

import contextlib
import logging
from collections.abc import Iterator


class _LastResort(logging.Handler):
    """Like `logging.lastResort`, but ignores the root logger's records."""

    def emit(self, record: logging.LogRecord) -> None:
        last = logging.lastResort
        if record.name != "root" and last is not None and record.levelno >= last.level:
            last.handle(record)


@contextlib.contextmanager
def root_logger_kept() -> Iterator[None]:
    """Keep libraries from configuring the root logger during the context.

    Beam configures it on import, and the caller's `logging.basicConfig` would then have no effect.
    """
    root, handler = logging.getLogger(), _LastResort()
    if root.handlers:
        yield
        return
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
