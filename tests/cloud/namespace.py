"""A network namespace in which this machine is Google, for clients with a fixed address (TensorFlow's for gs://).

    in the namespace   a client ──► https://storage.googleapis.com:443, by /etc/hosts 127.0.0.1 ─┐ an inherited
    on the machine     the proxy of tests.cloud.proxy ◄──────────────────────────────────────────┘ socket

The namespace has only its own loopback and its own view of /etc/hosts, and ends with its last process. It changes
nothing on the machine, and reaches nothing outside.
"""

import fcntl
import functools
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cloud.proxy import HOSTS, Proxy
from tests.support import limits, processes

# <linux/sockios.h> and <linux/if.h>
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def run(arguments: list[str], proxy: Proxy, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in a new namespace where `proxy`, with TLS, is Google Cloud Storage.

    Skips on platforms without such namespaces.
    """
    if not entering():
        pytest.skip("neither root nor user namespaces here: no namespace with a network and an /etc/hosts of its own")
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost " + " ".join(HOSTS) + "\n")
    script = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    inside = [sys.executable, "-m", "tests.cloud.namespace", str(proxy.adopting), sys.executable, *arguments]
    without = {name for name in os.environ if name.lower().endswith("_proxy")}
    google = {"CURL_CA_BUNDLE": str(proxy.ca_file), "GOOGLE_AUTH_TOKEN_FOR_TESTING": "nobody", "NO_GCE_CHECK": "true"}
    kept = {name: value for name, value in processes.environment().items() if name not in without}
    words = [*entering(), "sh", "-c", script, "sh", hosts, *inside]
    return processes.run(words, env={**kept, **google, **environment})


@functools.cache
def entering() -> tuple[str, ...]:
    for words in (("unshare", "-mn"), ("unshare", "-Urmn")):
        attempt = [*words, "mount", "--bind", "/etc/hosts", "/etc/hosts"]
        if shutil.which("unshare") and processes.run(attempt, timeout=limits.ANSWER).returncode == 0:
            return words
    return ()


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _hand_over(adopting: str) -> None:
    with socket.create_server(("127.0.0.1", 443)) as listening, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limits.ANSWER)
        connection.connect(adopting)
        socket.send_fds(connection, [b"."], [listening.fileno()])
        assert connection.recv(1) == b".", "the proxy has not adopted the socket"


if __name__ == "__main__":
    bring_up_loopback()
    _hand_over(sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])
