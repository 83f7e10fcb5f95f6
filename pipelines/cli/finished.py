"""Arguments that name the folder of a finished dataset, and opening it."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["folder", "open_manifest", "takes_dataset"]


def folder(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """Return the folder of a dataset, which may also be named by the path of its manifest."""
    return path if path is None else path.removesuffix("/manifest.json") if path != "manifest.json" else "."


takes_dataset = click.argument("dataset", callback=folder)


def open_manifest(dataset: str) -> Any:
    """Read the manifest of a finished dataset. Raises: ManifestError if there is none."""
    from pipelines.prepare.dataset import own_files

    return own_files.require_manifest(dataset)
