"""The page in a real browser, driven through Chromium's own protocol: what keys send, and what is shown."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.operator_script import wait
from tests.console.test_server import TOKEN, FakeDesk, serve

connect = pytest.importorskip("websockets.sync.client").connect
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]
EVIL = "<img src=x onerror=document.title='taken'>"


class Room(FakeDesk):
    """Two robots: the first waits for a start, the second for a label, with a cause that tries to be HTML."""

    def tiles(self) -> dict[str, Any]:
        base = {"episode": "", "steps": 7, "policy_version": 3, "since_s": 1.0, "stop": False, "failures": 1}
        first = {**base, "station": "robot-00", "state": "waiting for start", "cause": EVIL}
        second = {**base, "station": "robot-01", "state": "waiting for label", "cause": ""}
        waits = {"episode": "e-1", "station": "robot-01", "phase": "waiting", "suggests": "", "left_s": 9.0}
        said = {"outcome": "", "author": "", "reason": ""}
        return {"stations": [first, second], "episodes": [{**waits, **said}], "phase": "running"}


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, folder: Path, address: str) -> None:
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run")
        command = [str(CHROMIUM), *flags, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._stack = contextlib.ExitStack()
        port_file = folder / "DevToolsActivePort"
        try:
            wait(lambda: port_file.exists() and len(port_file.read_text().splitlines()) == 2, "Chromium", 30)
            port, path = port_file.read_text().splitlines()
            self._line = self._stack.enter_context(connect(f"ws://127.0.0.1:{port}{path}", proxy=None))
            self._count, self._session = 0, ""
            target = self.tell("Target.createTarget", url=address)["targetId"]
            self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        except BaseException:
            self.close()
            raise

    def tell(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        self._line.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while (answer := json.loads(self._line.recv(timeout=15))).get("id") != self._count:
            continue
        assert "error" not in answer, answer
        return dict(answer["result"])

    def value(self, script: str) -> Any:
        return self.tell("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.tell("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.tell("Input.dispatchKeyEvent", type="keyUp", key=key)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        self._stack.close()


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def browser(tmp_path: Path, room: Room) -> Iterator[Browser]:
    server = serve(room, TOKEN)
    made = Browser(tmp_path / "profile", f"http://127.0.0.1:{server.server_address[1]}/#token={TOKEN}")
    try:
        wait(lambda: made.value("document.querySelectorAll('.tile').length") == 2, "two tiles", 30)
        yield made
    finally:
        made.close()
        server.shutdown()
        server.server_close()


def test_keys_start_label_and_stop(browser: Browser, room: Room) -> None:
    browser.press("2")
    browser.press("s")
    wait(lambda: "type your name" in browser.value("document.getElementById('said').textContent"), "the question")
    assert room.asked == [], "nothing is said without a name"
    browser.value("document.getElementById('author').value = 'ann'; document.activeElement.blur()")
    for key in ("1", "Enter", "2", "s", "f", "x", "Escape"):
        browser.press(key)
        threading.Event().wait(0.2)  # a person's pace
    wait(lambda: len(room.asked) == 5, "five orders")
    assert room.asked == [
        ("start", {"station": "robot-00", "author": "ann"}),
        ("label", {"episode": "e-1", "outcome": "success", "reason": "", "author": "ann"}),
        ("label", {"episode": "e-1", "outcome": "failure", "reason": "", "author": "ann"}),
        ("stop", {"stations": ["robot-01"], "author": "ann"}),
        ("stop", {"stations": [], "author": "ann"}),
    ]


def test_a_stop_needs_no_name_and_texts_are_never_html(browser: Browser, room: Room) -> None:
    browser.press("Escape")
    wait(lambda: room.asked == [("stop", {"stations": [], "author": "unnamed operator"})], "the stop of all")
    assert EVIL in browser.value("document.querySelector('.cause').textContent")
    assert browser.value("document.images.length") == 0 and browser.value("document.title") != "taken"
    assert TOKEN not in browser.value("location.href"), "the token does not stay in the address"
