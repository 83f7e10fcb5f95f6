"""As much of the Hub's interface as finding and reading small datasets needs, in this process."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

SHA = "a" * 39 + "1"


@dataclasses.dataclass
class Repository:
    """A dataset with one commit, SHA. The first `refusals` requests are answered with `status`."""

    files: Mapping[str, bytes]
    private: bool = False
    gated: bool | str = False
    status: int = 200
    refusals: int = 0
    code: str = ""


class Hub:
    """The repositories by name."""

    def __init__(self, repositories: Mapping[str, Repository]) -> None:
        self.repositories = repositories

    def answer(self, method: str, path: str, query: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers, for `web.serving`."""
        del method
        parts = path.removeprefix("/api").removeprefix("/datasets/").split("/")
        repository = self.repositories.get("/".join(parts[:2]))
        if repository is None:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if repository.refusals:
            repository.refusals -= 1
            return repository.status, b"{}", {"X-Error-Code": repository.code} if repository.code else {}
        if parts[2:3] == ["resolve"]:
            return _content(repository, revision=parts[3], name="/".join(parts[4:]))
        if parts[2:3] == ["tree"]:
            return _tree(
                repository, "/".join(parts[4:]), recursive=parse_qs(query).get("recursive", ["no"])[0].lower() == "true"
            )
        if parts[2:3] == ["revision"] and parts[3] not in ("main", SHA, "refs"):
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        info = {"id": "/".join(parts[:2]), "sha": SHA, "private": repository.private, "gated": repository.gated}
        return 200, json.dumps({**info, "tags": [], "siblings": []}).encode(), {}


def _content(repository: Repository, *, revision: str, name: str) -> tuple[int, bytes, dict[str, str]]:
    if (content := repository.files.get(name)) is None or revision not in ("main", SHA):
        return 404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": SHA}
    return 200, content, {"X-Repo-Commit": SHA, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}


def _tree(repository: Repository, folder: str, *, recursive: bool) -> tuple[int, bytes, dict[str, str]]:
    start = f"{folder}/" if folder else ""
    below = [name.removeprefix(start) for name in repository.files if name.startswith(start)]
    entries: list[dict[str, Any]] = []
    for name in below:
        parents = ["/".join(name.split("/")[:depth]) for depth in range(1, name.count("/") + 1)]
        for path in (*parents, name):
            content = repository.files.get(f"{start}{path}", b"")
            kind = "file" if path == name else "directory"
            oid = hashlib.sha1(content).hexdigest()
            entry = {"type": kind, "oid": oid, "size": len(content), "path": f"{start}{path}"}
            if entry not in entries and (recursive or "/" not in path):
                entries.append(entry)
    if folder and not entries:
        return 404, b"{}", {"X-Error-Code": "EntryNotFound"}
    return 200, json.dumps(entries).encode(), {}
