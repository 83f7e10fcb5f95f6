"""A real browser for tests: headless Chromium, driven by the DevTools protocol over a pipe.

Chromium reads messages from file descriptor 3 and writes them to 4, each JSON with a zero byte behind it
(`--remote-debugging-pipe`). So no port is opened, and no library is needed. scripts/get_browser.py gets the program.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts import get_browser

__all__ = ["Tab", "opened"]

_SECONDS = 60.0
# One process has no sandbox of its own that a container would have to allow.
_OPTIONS = ("--no-sandbox", "--headless=shell", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


@dataclasses.dataclass
class Tab:
    """A page in the browser. `events` has every message of the browser so far."""

    connection: _Connection
    session: str
    events: list[dict[str, Any]]

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        return self.connection.call(method, params, session=self.session, events=self.events)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page, which its content policy does not bind."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def show(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a file in a window of this size, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        before = len(self.events)
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + _SECONDS
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events[before:]):
            self.events.append(self.connection.receive(deadline))

    def picture(self, *, selector: str = "html") -> bytes:
        """Return a PNG of an element."""
        box = self.evaluate(
            f"(() => {{ const r = document.querySelector({selector!r}).getBoundingClientRect();"
            " return [r.x + scrollX, r.y + scrollY, r.width, r.height] })()"
        )
        clip = dict(zip(("x", "y", "width", "height"), box, strict=True), scale=1)
        found = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Tab]:
    """Start a browser whose profile is in `folder`, and open an empty tab that logs requests and the console."""
    with _started(folder) as connection:
        target = connection.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = connection.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(connection=connection, session=session, events=[])
        for domain in ("Page", "Network", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        yield tab


class _Connection:
    """Sends and receives messages."""

    def __init__(self, *, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._last = 0

    def call(
        self,
        method: str,
        params: dict[str, Any],
        *,
        session: str | None = None,
        events: list[dict[str, Any]] | None = None,
    ) -> Any:
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        os.write(self._write, json.dumps({**message, **({"sessionId": session} if session else {})}).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while (answer := self.receive(deadline)).get("id") != self._last:
            if events is not None:
                events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser says nothing"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


# The shell gives the pipes the numbers that Chromium expects.
_REDIRECTED = 'exec "$0" "$@" 3<&"$PIPE_IN" 4>&"$PIPE_OUT"'


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[_Connection]:
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    command = [str(get_browser.program()), *_OPTIONS, f"--user-data-dir={folder}", "--remote-debugging-pipe"]
    environment = {
        **get_browser.environment(),
        "HOME": str(folder),
        "PIPE_IN": str(their_in),
        "PIPE_OUT": str(their_out),
    }
    with subprocess.Popen(
        ["bash", "-c", _REDIRECTED, *command, "about:blank"],
        env=environment,
        pass_fds=(their_in, their_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(their_in)
        os.close(their_out)
        try:
            yield _Connection(write=our_out, read=our_in)
        finally:
            process.kill()
            process.wait()
            os.close(our_out)
            os.close(our_in)
