"""A real Chromium for tests, driven by the DevTools protocol over its pipe of WebSocket messages.

    async with Browser.at(chromium) as browser:
        async with browser.page(width=360, dark=True) as page:
            await page.open("http://127.0.0.1:8080/")
            await page.run("document.title")

The fixture `chromium` starts it once, and what one test leaves in it no other sees. Mark tests that use it with
`@pytest.mark.chromium`: where the program is not installed they are skipped with that reason, except in CI, where they
fail.

Source: https://chromedevtools.github.io/devtools-protocol
"""

import asyncio
import base64
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

PROGRAM = "chromium"
_LIMIT_S = 300.0
"""Longer than any machine needs; what has ended says so sooner."""

Json = dict[str, Any]


def require_chromium() -> None:
    if shutil.which(PROGRAM):
        return
    reason = f"the program {PROGRAM!r} is not installed (Debian: apt-get install chromium)"
    pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@contextmanager
def running_chromium(folder: Path) -> Iterator[str]:
    """The address of its protocol; its profile is in the folder."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
    command = [shutil.which(PROGRAM) or PROGRAM, *flags, f"--user-data-dir={folder}", "about:blank"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield _address(process, folder)
    finally:
        process.terminate()
        process.wait()


def _address(process: "subprocess.Popen[bytes]", folder: Path) -> str:
    """Where the browser is reached, once it has written that down. Raises: AssertionError with its words."""
    deadline, file = time.monotonic() + _LIMIT_S, folder / "DevToolsActivePort"
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and len(lines := file.read_text().splitlines()) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.02)
    raise AssertionError((folder / "chromium.log").read_text(errors="replace"))


class Browser:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._context = ""
        """Its pages share cookies, caches and whatever else a profile has with no others."""
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._heard: dict[str, Callable[[str, Json], None]] = {}
        """By session."""

    @classmethod
    @asynccontextmanager
    async def at(cls, address: str) -> "AsyncIterator[Browser]":
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(address, max_msg_size=0) as socket,
        ):
            browser = cls(socket)
            listening = asyncio.create_task(browser._listen())
            browser._context = (await browser.call("Target.createBrowserContext"))["browserContextId"]
            yield browser
            await browser.call("Target.disposeBrowserContext", browserContextId=browser._context)
            listening.cancel()

    async def _listen(self) -> None:
        async for message in self._socket:
            said: Json = message.json()
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            elif (heard := self._heard.get(said.get("sessionId", ""))) is not None:
                heard(said["method"], said["params"])

    async def call(self, method: str, session: str = "", **parameters: Any) -> Json:
        """The result. Raises: AssertionError where the browser refuses."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        to = {"sessionId": session} if session else {}
        await self._socket.send_json({"id": number, "method": method, "params": parameters, **to})
        async with asyncio.timeout(_LIMIT_S):
            said = await answer
        assert "error" not in said, (method, said)
        result: Json = said["result"]
        return result

    @asynccontextmanager
    async def page(
        self, *, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True
    ) -> "AsyncIterator[Page]":
        """A window of that size; without `script` it runs none."""
        blank = {"url": "about:blank", "browserContextId": self._context}
        target = (await self.call("Target.createTarget", **blank))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Page(self, session)
        self._heard[session] = page.heard
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.call("Emulation.setEmulatedMedia", features=[scheme])
        await page.call("Emulation.setScriptExecutionDisabled", value=not script)
        try:
            yield page
        finally:
            del self._heard[session]
            await self.call("Target.closeTarget", targetId=target)


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []
        """What the console says: errors, warnings, what the policy of the page forbids, exceptions."""
        self.statuses: list[tuple[str, int]] = []
        """Of what it has fetched: address, status as the page sees it."""
        self.wire: list[int] = []
        """The same as it came from the server."""

    def heard(self, method: str, said: Json) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Runtime.exceptionThrown":
                self.complaints.append(said["exceptionDetails"]["text"])
            case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                self.complaints.append(said["entry"]["text"])
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(said["args"]))
            case "Network.responseReceived":
                self.statuses.append((said["response"]["url"], said["response"]["status"]))
            case "Network.responseReceivedExtraInfo":
                self.wire.append(said["statusCode"])

    def of(self, url: str) -> list[int]:
        """How often this was fetched, by statuses."""
        return [status for address, status in self.statuses if address == url]

    async def call(self, method: str, **parameters: Any) -> Json:
        return await self._browser.call(method, self._session, **parameters)

    async def open(self, url: str) -> None:
        """Returns when all of it is loaded."""
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(_LIMIT_S):
            await self._loaded.wait()
            while not await self._is_there():
                await self._loaded.wait()

    async def _is_there(self) -> bool:
        """Whether the page is loaded, and not still the empty one of a new window, whose event may come late."""
        self._loaded.clear()
        return bool(await self.run("document.readyState === 'complete' && location.href !== 'about:blank'"))

    async def run(self, expression: str) -> Any:
        """The value of the expression of JavaScript, awaited."""
        said = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    async def screenshot(self) -> bytes:
        """A PNG of the whole page."""
        said = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(said["data"])

    async def accessible(self) -> list[Json]:
        """The nodes of the tree that a screen reader has."""
        nodes: list[Json] = (await self.call("Accessibility.getFullAXTree"))["nodes"]
        return nodes
