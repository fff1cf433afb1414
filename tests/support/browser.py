"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.support.daemons import Missing

#: Without a sandbox, because tests may run as root; and without requests of the browser's own.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
#: How long a page may take for what a test expects, in milliseconds. It only ends hangs.
PATIENCE_MS = 60_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; `Missing` if it is not installed."""
    program = shutil.which("chromium")
    if program is None:
        raise Missing("chromium is not installed: run scripts/system-deps")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page of the browser that fails the test for any error that it reports.

    complaints: errors of scripts, messages of the console at the level error (violations of the
    content security policy are among them), and dialogs, which no page of ours opens.
    """

    def __init__(self, context: BrowserContext) -> None:
        context.set_default_timeout(PATIENCE_MS)
        self.context = context
        self.complaints: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on("console", self._said)
        self.page.on("dialog", self._dialog)

    def _said(self, message: object) -> None:
        kind, text = getattr(message, "type", ""), getattr(message, "text", "")
        if kind == "error":
            self.complaints.append(f"console: {text}")

    def _dialog(self, dialog: object) -> None:
        self.complaints.append(f"dialog: {getattr(dialog, 'message', '')}")
        dialog.dismiss()  # type: ignore[attr-defined]

    def check(self) -> None:
        assert not self.complaints, "\n".join(self.complaints)
