"""Disk: on one that is full or read-only a build ends clearly, and goes on when there is room.

The disk is real: a small file system of its own, mounted where nobody else sees it, for two builds one after the other.
That takes root, or a user namespace. Where neither is to be had, the figures say that nothing was tried.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from scripts.torturing import processes
from scripts.torturing.figures import Figure
from scripts.torturing.ground import Ground, Recipe, completed, ended
from scripts.torturing.processes import Outcome

__all__ = ["run"]

_PAGE_BYTES = 4096
# The words before a command that give it mounts of its own: as root, or as root of a new user namespace.
_WAYS = (("unshare", "-m"), ("unshare", "-Urm"))
# Two builds, and what each of them left.
_SCRIPT = """
set -u
mkdir -p {mount} {kept}
mount -t tmpfs -o size={bytes} tmpfs {mount} || exit 99
mount -o remount,{first} {mount}
{build} >{kept}/out-1 2>{kept}/err-1; echo $? >{kept}/status-1
cp -a {mount}/out {kept}/folder-1 2>/dev/null
mount -o remount,{then} {mount}
{build} >{kept}/out-2 2>{kept}/err-2; echo $? >{kept}/status-2
cp -a {mount}/out {kept}/folder-2
"""


def run(ground: Ground, *, sizes: int) -> list[Figure]:
    """Builds on disks of `sizes` different sizes, all too small, and on a read-only one. Returns: two figures."""
    full = Figure(section="disk", claim="a full disk; a clear end, then it goes on when there is room")
    read_only = Figure(section="disk", claim="a read-only disk; the same")
    if not (way := _way_to_mount()):
        full.note = read_only.note = "neither root nor user namespaces here, so nothing can be mounted"
        return [full, read_only]
    recipe = ground.recipe(rows=400, shard_size="20kB")
    # What the files take in whole pages; names take none of a tmpfs's.
    files = (path for path in ground.clean(recipe).folder.rglob("*") if path.is_file())
    needed = sum(-(-path.stat().st_size // _PAGE_BYTES) for path in files)
    for size in (max(1, needed * part // sizes) for part in range(sizes)):
        problem = _twice(ground, recipe, way, pages=size, first=f"size={size * _PAGE_BYTES}", then="size=100m")
        full.check(problem and f"{size} of {needed} pages: {problem}")
    problem = _twice(ground, recipe, way, pages=2 * needed, first="ro", then="rw")
    read_only.check(problem)
    full.note = f"from 1 to {size} of the {needed} pages needed"
    return [full, read_only]


def _twice(ground: Ground, recipe: Recipe, way: tuple[str, ...], *, pages: int, first: str, then: str) -> str:
    """The same build, on a disk mounted with the options `first` and then `then`. Returns: what went wrong."""
    mount, kept = ground.fresh("mount"), ground.fresh("kept")
    script = _SCRIPT.format(
        mount=shlex.quote(str(mount)),
        kept=shlex.quote(str(kept)),
        bytes=pages * _PAGE_BYTES,
        first=first,
        then=then,
        build=shlex.join(processes.words(*recipe.arguments(mount / "out"))),
    )
    ran = subprocess.run([*way, "bash", "-c", script], capture_output=True, text=True)
    clean = ground.clean(recipe)
    if ran.returncode:
        return f"the script ended with status {ran.returncode}: {ran.stderr}"
    failed, again = _outcome(kept, 1), _outcome(kept, 2)
    problem = "it did not fail" if failed.status == 0 else ended(failed, kept / "folder-1", clean)
    problem = problem or completed(again, kept / "folder-2", clean)
    shutil.rmtree(kept)
    shutil.rmtree(mount)
    return problem


def _outcome(kept: Path, number: int) -> Outcome:
    return Outcome(
        status=int((kept / f"status-{number}").read_text()),
        out=(kept / f"out-{number}").read_text(),
        err=(kept / f"err-{number}").read_text(),
    )


def _way_to_mount() -> tuple[str, ...]:
    for words in _WAYS:
        attempt = [*words, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
        if shutil.which("unshare") and subprocess.run(attempt, capture_output=True).returncode == 0:
            return words
    return ()
