"""A real browser, driven over two pipes by the Chrome DevTools Protocol: no driver to install.

Chromium reads commands from file descriptor 3 and writes answers and events to 4, JSON texts that
end with a zero byte.
"""

from __future__ import annotations

import base64
import itertools
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

import numpy as np

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 120.0  # seconds for one answer, on a machine that does much else


def find_chromium() -> str | None:
    """The browser's command, if it is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One page in a browser.

    Arguments:
        process: The browser.
        write: Where commands go.
        read: Where answers come from.
    """

    def __init__(self, process: subprocess.Popen[bytes], write: int, read: int) -> None:
        self.process, self.write, self.read = process, write, read
        self.numbers, self.rest = itertools.count(1), b""
        self.events: list[dict[str, Any]] = []
        self.session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are kept."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            got = self.next_message()
            if got.get("id") == number:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                result: dict[str, Any] = got["result"]
                return result

    def next_message(self) -> dict[str, Any]:
        """The next answer or event."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.read, 2**16) if ready else b""
            if not part:
                raise RuntimeError("the browser has ended or does not answer")
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file, in a window of a size, in light or dark; forget earlier events."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.next_message()

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        names = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **names)
        self.call("Input.dispatchKeyEvent", type="keyUp", **names)

    def screenshot(self, *, whole: bool = True) -> bytes:
        """A PNG of the page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    def pixels(self, path: Path) -> Any:
        """The page as red, green and blue `(height, width, 3)`, by way of a file."""
        from matplotlib.image import imread

        path.write_bytes(self.screenshot())
        return np.rint(imread(path)[..., :3] * 255).astype(int)

    def pdf(self) -> bytes:
        """The page as printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    @property
    def complaints(self) -> list[str]:
        """What the console and the log have said, and errors that nobody caught."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.events if e["method"] in kinds]

    @property
    def requests(self) -> list[str]:
        """All addresses that were asked for, but for those inside the page."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        urls = (event["params"]["request"]["url"] for event in sent)
        return [url for url in urls if not url.startswith("data:")]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, which is ended with the block."""
    command = find_chromium()
    if command is None:
        raise RuntimeError("chromium is not installed: apt-get install chromium")
    commands, answers = os.pipe(), os.pipe()
    # The shell puts the pipes where the browser looks for them, whatever numbers they have here.
    shell = f'exec "$@" 3<&{commands[0]} 4>&{answers[1]}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", command, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(commands[0], answers[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands[0])
    os.close(answers[1])
    try:
        yield Browser(process, commands[1], answers[0])
    finally:
        os.close(commands[1])  # a browser whose pipe is closed ends by itself
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(answers[0])
