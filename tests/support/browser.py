"""A real browser without a window: the machine's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, Request, sync_playwright

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


class NoBrowserError(RuntimeError):
    """There is no browser on PATH."""


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A Chromium of its own, with a fresh profile.

    Raises:
        NoBrowserError: The machine has none.
    """
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        raise NoBrowserError("no Chromium is on PATH: run `make browser`")
    # Chromium does not sandbox itself as root. It opens our own pages only.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Trace:
    """Messages and requests of a page."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("requestfailed", self._failed)
        page.on("request", lambda request: self.asked.append(request.url))

    def _failed(self, request: Request) -> None:
        self.complaints.append(f"{request.url} failed: {request.failure}")
