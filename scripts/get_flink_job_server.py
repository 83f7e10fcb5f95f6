"""Get Beam's job server for Apache Flink, as one small jar that names its parts.

    python scripts/get_flink_job_server.py         prints the path of the jar, JAR below

    prep-tfrecords build … -- --runner=FlinkRunner --flink_master=[local] --flink_job_server_jar=JAR
    java -Xmx1g -jar JAR --flink-master='[local]' --job-port=8099

Maven fetches the parts, about 150 MB, into its local repository, except those already there. The jar holds only a
manifest that points to them. It lies in ~/.cache/prep-tfrecords (or $XDG_CACHE_HOME), and is made again if a part is
missing. One digest pins all parts. Exit status: 0 if it is there, 1 if not, with cause and remedy.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Sequence
from typing import Any

FLINK = "1.19"
# The newest release with all parts available. Beam's protocols change little: it also serves newer Python SDKs.
BEAM = "2.62.0"
# Digest of a listing of all parts: digest and name per part, in the order of their names.
SHA256 = "e3756fbe6cbcd86afbdc9edc4e9f7aea7d94d0419933a18a6685f91290722dab"
JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_SECONDS = 900

_POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>prep-tfrecords</groupId>
  <artifactId>flink-job-server</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.beam</groupId>
      <artifactId>beam-runners-flink-{FLINK}</artifactId>
      <version>{BEAM}</version>
    </dependency>
    <dependency>  <!-- or else the server would write no log -->
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.30</version>
    </dependency>
  </dependencies>
</project>
"""


class NotFetchedError(Exception):
    """Beam's job server cannot be fetched; the message gives the reason."""


def main() -> int:
    """Fetch the jar if necessary, print its path or the error, and return the exit status."""
    try:
        print(fetch())
    except NotFetchedError as error:
        print(f"error: no job server for Flink: {error}", file=sys.stderr)
        print("remedy: install Java 11 or 17 and Maven, and let Maven reach its repository", file=sys.stderr)
        return 1
    return 0


def path() -> pathlib.Path:
    """Return the path of the job server's jar, whether it exists or not."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "prep-tfrecords" / f"flink-{FLINK}-job-server-{BEAM}.jar"


def missing() -> str:
    """Return a message about the first missing requirement of the job server, or "" if it can run."""
    if shutil.which("java") is None:
        return "java is not on PATH"
    if not path().is_file():
        return f"{path()} is missing; run scripts/get_flink_job_server.py"
    absent = [part for part in _parts(path()) if not part.is_file()]
    return f"{absent[0]} is missing; run scripts/get_flink_job_server.py" if absent else ""


def fetch() -> pathlib.Path:
    """Return the path of the job server's jar, fetched from Maven unless it is complete. Raises: NotFetchedError."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise NotFetchedError(f"{program} is not on PATH")
    if missing():
        print(f"getting Flink {FLINK} and Beam {BEAM} through Maven, about 150 MB if all is new", file=sys.stderr)
        parts = _resolve()
        _require_known(parts)
        _write_jar(path(), parts)
    else:
        _require_known(_parts(path()))
    return path()


def _require_known(parts: Sequence[pathlib.Path]) -> None:
    """Raise NotFetchedError unless the names and contents of these jar files have the digest `SHA256`."""
    listing = [f"{hashlib.sha256(part.read_bytes()).hexdigest()}  {part.name}\n" for part in parts]
    digest = hashlib.sha256("".join(sorted(listing, key=lambda line: line.split()[1])).encode()).hexdigest()
    if digest != SHA256:
        raise NotFetchedError(
            f"sha256 of the {len(parts)} jars, as `sha256sum` lists them by name, is {digest}, expected {SHA256}"
        )


def _resolve() -> list[pathlib.Path]:
    """Let Maven fetch the job server's jar and its dependencies; return their paths in its local repository."""
    with tempfile.TemporaryDirectory() as folder:
        pom, listed = pathlib.Path(folder) / "pom.xml", pathlib.Path(folder) / "classpath"
        pom.write_text(_POM)
        goal = ["dependency:build-classpath", "-DincludeScope=runtime", f"-Dmdep.outputFile={listed}"]
        command = ["mvn", "--quiet", "--batch-mode", "--file", str(pom), *goal]
        quiet: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        try:
            ended = subprocess.run(command, **quiet, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise NotFetchedError(f"Maven did not finish within {_SECONDS} seconds") from error
        if ended.returncode:
            said = [line for line in (ended.stdout + ended.stderr).splitlines() if "ERROR" in line]
            raise NotFetchedError(f"Maven failed with status {ended.returncode}: {said[0] if said else 'no reason'}")
        return [pathlib.Path(part) for part in listed.read_text().strip().split(os.pathsep)]


def _write_jar(jar: pathlib.Path, parts: list[pathlib.Path]) -> None:
    jar.parent.mkdir(parents=True, exist_ok=True)
    addresses = " ".join(part.as_uri() for part in parts)
    manifest = {"Manifest-Version": "1.0", "Main-Class": JOB_SERVER, "Class-Path": addresses}
    partial = jar.with_name(f".{jar.name}-{os.getpid()}")
    with zipfile.ZipFile(partial, "w") as archive:
        # A line has 72 bytes at most; the rest is in lines that begin with a space.
        lines = [re.sub(".{70}", r"\g<0>\r\n ", f"{key}: {value}") for key, value in manifest.items()]
        archive.writestr("META-INF/MANIFEST.MF", "".join(f"{line}\r\n" for line in lines))
    partial.replace(jar)


def _parts(jar: pathlib.Path) -> list[pathlib.Path]:
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read("META-INF/MANIFEST.MF").decode().replace("\r\n ", "").splitlines()
    (addresses,) = [line.partition(": ")[2] for line in lines if line.startswith("Class-Path: ")]
    paths = [urllib.parse.urlsplit(address).path for address in addresses.split()]
    return [pathlib.Path(urllib.request.url2pathname(path)) for path in paths]


if __name__ == "__main__":
    sys.exit(main())
