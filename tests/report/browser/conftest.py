"""A headless Chromium, driven over a pipe by the DevTools protocol with the standard library alone."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)
# Chromium reads commands from file 3 and answers on file 4; the pipes come under other numbers.
AS_3_AND_4 = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Tab:
    """One page: opened, looked at, asked. `problems` holds every console message above info and every exception."""

    def __init__(self, pipe: "Pipe", width: int, dark: bool) -> None:
        target = pipe.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = pipe.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._pipe, self._width = pipe, width
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command to this page; what happened meanwhile is noted."""
        found = self._pipe.call(method, self._session, **parameters)
        self._note()
        return found

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file and wait until it is there."""
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self._pipe.wait_for("Page.loadEventFired", self._session)
        self._note()

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _note(self) -> None:
        for event in self._pipe.events.pop(self._session, []):
            name, body = event["method"], event.get("params", {})
            if name == "Runtime.exceptionThrown":
                self.problems.append(str(body["exceptionDetails"]))
            elif name == "Log.entryAdded" and body["entry"]["level"] in ("warning", "error"):
                self.problems.append(body["entry"]["text"])
            elif name == "Runtime.consoleAPICalled" and body["type"] in ("warning", "error", "assert"):
                self.problems.append(str(body["args"]))
            elif name == "Network.requestWillBeSent":
                self.requests.append(body["request"]["url"])


class Pipe:
    """The protocol: JSON messages that end in a zero byte, over two pipes."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer = write, read, b""
        self._ids = itertools.count(1)
        self.events: dict[str, list[dict[str, Any]]] = {}

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        message = {"id": next(self._ids), "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def tab(self, *, width: int = 1280, dark: bool = False) -> Tab:
        """A new page of a given width, in light or dark."""
        return Tab(self, width, dark)

    def wait_for(self, method: str, session: str) -> None:
        """Wait for an event that has come or is still to come."""
        while not any(event["method"] == method for event in self.events.get(session, [])):
            self._next()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has gone"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.setdefault(message.get("sessionId", ""), []).append(message)
        return message


@contextlib.contextmanager
def launched(binary: str) -> Iterator[Pipe]:
    """A browser with a profile of its own, gone at the end."""
    to_browser, from_browser = os.pipe(), os.pipe()
    ends = (to_browser[0], from_browser[1])
    with tempfile.TemporaryDirectory() as profile:
        start = [sys.executable, "-c", AS_3_AND_4, *map(str, ends), binary]
        command = [*start, *OPTIONS, f"--user-data-dir={profile}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, pass_fds=ends, **quiet)
        for end in ends:
            os.close(end)
        pipe = Pipe(to_browser[1], from_browser[0])
        try:
            yield pipe
            with contextlib.suppress(AssertionError):
                pipe.call("Browser.close")
            process.wait(timeout=20)
        finally:
            process.kill()
            process.wait()
            os.close(to_browser[1])
            os.close(from_browser[0])


@pytest.fixture(scope="session")
def browser() -> Iterator[Pipe]:
    """Chromium or Chrome, where the machine has one."""
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        pytest.skip(f"no browser on this machine: expected one of {', '.join(NAMES)} on PATH")
    with launched(binary) as found:
        yield found
