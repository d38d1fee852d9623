"""Chromium, spoken to through a pipe: a page at any width and in either scheme, its keys, requests and errors."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
_FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update "
    "disable-sync hide-scrollbars disable-dev-shm-usage remote-debugging-pipe"
)
_PATIENCE = 600


class Browser:
    """One tab; what happens meanwhile is written down in `requests` and `wrong`."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes, self._left, self._last = reads, writes, b"", 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.wrong: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{part}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol and its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def screen(self, width: int, height: int = 900, *, dark: bool = False, touch: bool = False) -> None:
        """How wide the screen is and which scheme its owner likes."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, address: str, *, until: str = "document.readyState === 'complete'") -> None:
        self.run("window.isOld = true")
        self.ask("Page.navigate", url=address)
        self.wait_for(f"!window.isOld && ({until})")

    def wait_for(self, condition: str) -> None:
        ends = time.monotonic() + _PATIENCE
        # Between two pages there is a moment without either.
        while not self.run(f"(() => {{ try {{ return {condition} }} catch {{ return false }} }})()"):
            assert time.monotonic() < ends, f"in vain: {condition}; {self.wrong}"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=True)["data"])

    def _next(self) -> dict[str, Any]:
        ends = time.monotonic() + _PATIENCE
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._reads], [], [], max(0.0, ends - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._reads, 1 << 20)
            assert part, "the browser has ended"
            self._left += part
        message, self._left = self._left.split(b"\0", 1)
        told: dict[str, Any] = json.loads(message)
        self._note(told.get("method", ""), told.get("params", {}))
        return told

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.wrong.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.wrong.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.wrong.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser of one's own, gone when the block ends."""
    assert CHROMIUM is not None
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()

    def as_3_and_4() -> None:
        # Chromium reads commands from 3 and answers on 4; the pipes may have these numbers already.
        there, back = os.dup(to_read), os.dup(from_write)
        os.dup2(there, 3)
        os.dup2(back, 4)

    process = subprocess.Popen(
        [CHROMIUM, *(f"--{flag}" for flag in _FLAGS.split()), f"--user-data-dir={profile}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=as_3_and_4,  # noqa: PLW1509 - no threads of ours hold a lock here
        close_fds=False,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(from_read, to_write)
    finally:
        process.terminate()
        process.wait(_PATIENCE)
        os.close(to_write)
        os.close(from_read)
