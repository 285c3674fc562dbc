"""A browser that tests drive: Chromium, by its own DevTools protocol over aiohttp's websockets.

Waiting is done in the page: a condition is looked at with each frame until it holds. What the page
logs as an error, raises or breaks of its policy is kept, so that a test can insist on none.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 30
END_S = 5
PR_SET_PDEATHSIG = 1
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def browser_path() -> str | None:
    """The browser of this machine, if there is one."""
    named = os.environ.get("TOQUE_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A tab.

    Attributes:
        faults: what went wrong in it: errors that were logged or raised, breaches of its policy.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._session: str | None = None
        self.faults: list[str] = []
        self.requests: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                call = self._calls.pop(told["id"])
                if not call.done():
                    call.set_result(told)
            else:
                self._note(told.get("method"), told.get("params", {}))

    def _note(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(params["exceptionDetails"].get("exception", params)))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            if entry["source"] != "network":  # refusals and absences are what is tested
                self.faults.append(entry["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.faults.append(f"a dialog opened: {params['message']}")

    async def send(self, method: str, **params: Any) -> Any:
        """A command of the protocol."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        call = self._calls[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        async with asyncio.timeout(WAIT_S):
            told = await call
        assert "error" not in told, told["error"]
        return told["result"]

    async def begin(self) -> None:
        """Open a tab of its own."""
        made = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{domain}.enable")

    async def close(self) -> None:
        """End the browser."""
        self._session = None
        await self.send("Browser.close")
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def go(self, url: str) -> None:
        """Load a page anew."""
        await self.send("Page.navigate", url="about:blank")
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && document.URL !== 'about:blank'")

    async def eval(self, script: str) -> Any:
        """What an expression gives, awaited."""
        told = await self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, (script, told["exceptionDetails"])
        return told["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression holds."""
        found = await self.eval(
            f"""new Promise((done) => {{
              const end = performance.now() + {WAIT_S - 5} * 1000;
              const look = () => {{
                let holds = false;
                try {{ holds = Boolean({condition}); }} catch {{ holds = false; }}
                if (holds || performance.now() > end) done(holds);
                else requestAnimationFrame(look);
              }};
              look();
            }})"""
        )
        if not found:
            text = await self.eval("document.body.innerText")
            raise AssertionError(f"{condition} never held. The page says:\n{text}\n{self.faults}")

    async def sees(self, text: str) -> None:
        """Wait until the page shows a text."""
        await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def text(self, selector: str = "body") -> str:
        """What the first element of a selector shows."""
        return str(await self.eval(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def click(self, text: str, within: str = "body") -> None:
        """Press the button or follow the link of that text (or that begins with it)."""
        found = (
            f"[...document.querySelector({json.dumps(within)})"
            ".querySelectorAll('button, a, summary, label.chip')]"
            f".find((one) => one.innerText.trim().startsWith({json.dumps(text)}) && !one.disabled)"
        )
        await self.until(found)
        await self.eval(f"{found}.click()")

    async def fill(self, selector: str, text: str) -> None:
        """Type a text into a field, in place of what is there."""
        await self.until(f"document.querySelector({json.dumps(selector)})")
        await self.eval(f"document.querySelector({json.dumps(selector)}).select()")
        if text:
            await self.send("Input.insertText", text=text)
        else:
            await self.press("Delete")

    async def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "Delete": 46, " ": 32}
        named = {"key": key, "code": "Space" if key == " " else key}
        more = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent", type=kind, modifiers=modifiers,
                windowsVirtualKeyCode=codes[key], **named, **(more if kind == "keyDown" else {}),
            )  # fmt: skip

    async def size(self, width: int, height: int) -> None:
        """Give the page that many pixels."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def colours(self, scheme: str) -> None:
        """What the system is said to prefer: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def picture(self, path: Path) -> None:
        """A screenshot."""
        found = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Page]:
    """A browser with one tab; `folder` becomes its profile, and must be empty or new."""
    path = browser_path()
    assert path is not None
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, start_new_session=True,
            preexec_fn=_die_with_the_test,
        )  # fmt: skip
    try:
        url = await asyncio.to_thread(_address, process)
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, max_msg_size=64 << 20) as socket,
        ):
            page = Page(socket)
            try:
                await page.begin()
                yield page
            finally:
                with contextlib.suppress(OSError, TimeoutError):  # it has ended by itself
                    await page.close()
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, END_S)
        process.kill()
        process.communicate()


def _die_with_the_test() -> None:
    """Have the kernel end this process when who started it is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _address(process: subprocess.Popen[bytes]) -> str:
    """Where it listens, as it tells on standard error."""
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        said += line
        if line.startswith(b"DevTools listening on "):
            return line.decode().split()[-1]
    raise AssertionError(f"the browser did not start: {said.decode(errors='replace')}")
