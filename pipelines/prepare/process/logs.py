"""The root logger, which belongs to whoever calls us."""

import contextlib
import logging
from collections.abc import Iterator


class _Nameless(logging.Handler):
    """Handler that does what Python does without any, but drops what libraries say to the root logger itself."""

    def emit(self, record: logging.LogRecord) -> None:
        last = logging.lastResort
        if record.name != "root" and last is not None and record.levelno >= last.level:
            last.handle(record)


@contextlib.contextmanager
def root_logger_kept() -> Iterator[None]:
    """Keep libraries from configuring the root logger during the context.

    Beam does when it is imported and when it reads its options, if there is no handler; the caller's own
    `logging.basicConfig` would have no effect after that.
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
