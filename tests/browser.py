"""A real Chromium for tests, driven by the DevTools protocol over its pipe of WebSocket messages.

    async with Browser.launch(folder) as browser:
        async with browser.page(width=360, dark=True) as page:
            await page.open("http://127.0.0.1:8080/")
            await page.run("document.title")

Mark tests that use it with `@pytest.mark.chromium` and call `require_chromium()` first: where the program is not
installed they are skipped with that reason, except in CI, where they fail.

Source: https://chromedevtools.github.io/devtools-protocol
"""

import asyncio
import base64
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

PROGRAM = "chromium"
_LIMIT_S = 60.0

Json = dict[str, Any]


def require_chromium() -> None:
    if shutil.which(PROGRAM):
        return
    reason = f"the program {PROGRAM!r} is not installed (Debian: apt-get install chromium)"
    pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


class Browser:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._heard: dict[str, Callable[[str, Json], None]] = {}
        """By session."""

    @classmethod
    @asynccontextmanager
    async def launch(cls, folder: Path) -> "AsyncIterator[Browser]":
        """A browser whose profile is in the folder."""
        profile = folder / "browser"
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
        process = await asyncio.create_subprocess_exec(
            shutil.which(PROGRAM) or PROGRAM,
            *flags,
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(_LIMIT_S):
                address = await _address(process.stderr)
            draining = asyncio.create_task(process.stderr.read())
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(address, max_msg_size=0) as socket,
            ):
                browser = cls(socket)
                listening = asyncio.create_task(browser._listen())
                yield browser
                listening.cancel()
                draining.cancel()
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()

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
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
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


async def _address(said: asyncio.StreamReader) -> str:
    """Where the browser is reached, once it says so. Raises: AssertionError with its words where it ends."""
    lines = []
    async for line in said:
        lines.append(line.decode())
        if found := re.search(r"DevTools listening on (ws://\S+)", lines[-1]):
            return found.group(1)
    raise AssertionError("".join(lines))


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
