"""Storage addresses. A service with conditional writes needs a module like `storage.gcs`, and a line in `STORES`."""

# Modules in `storage`, by URL scheme. All other schemes go through fsspec (`object_storage`).
STORES = {"gs": "gcs", "gcs": "gcs"}
# Workers read these without the user's credentials, with those of their service account.
READ_BY_WORKERS = ("gs", "gcs")
ADDRESS = " or ".join(f"{scheme}://" for scheme in {STORES[scheme]: scheme for scheme in reversed(STORES)}.values())


def bucket_of(path: str) -> str | None:
    """Return the name of the bucket in an address such as gs://BUCKET/FOLDER, or None without a scheme in `STORES`."""
    scheme, separator, rest = path.partition("://")
    return rest.partition("/")[0] if separator and scheme in STORES else None
