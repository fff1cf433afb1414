"""One browser for all tests of a module, and a tab for each test.

It does not last the whole session: while Playwright runs, it has an event loop in the thread of the
tests, and no other test could have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import PATIENCE_MS, Tab, chromium
from tests.web.browser.site import Site, served_site

NewTab = Callable[..., Tab]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as browser:
        yield browser


@pytest.fixture
def new_tab(browser: Browser) -> Iterator[NewTab]:
    """`new_tab(**options)` opens one, such as with color_scheme="dark" or without JavaScript."""
    tabs: list[Tab] = []
    with ExitStack() as stack:

        def opened(**options: Any) -> Tab:
            context = browser.new_context(**options)
            stack.callback(context.close)
            tabs.append(Tab(context))
            return tabs[-1]

        yield opened
    for tab in tabs:
        tab.check()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served_site(tmp_path_factory.mktemp("site")) as site:
        yield site
