"""Settings of libraries for a process that runs nothing but one command."""

from __future__ import annotations

import click

__all__ = ["configure"]


def configure() -> None:
    """Configure libraries if the running command has the process to itself.

    Allocators keep less of what is freed.
    """
    context = click.get_current_context(silent=True)
    if context is None or not getattr(context.find_root().command, "owns_process", False):
        return
    from pipelines.prepare.process import memory

    memory.keep_less()
