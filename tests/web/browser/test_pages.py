"""Every page in a real browser: light, dark and on a phone, accessible, and safe."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import Page, expect

from tests.support.browser import Tab
from tests.web.browser.conftest import NewTab
from tests.web.browser.site import Site

#: Every page of the shop. `{dead}` is a dead job, `{running}` one that runs, …
PAGES = {
    "overview": "/",
    "queue": "/queues/orders?range=24h",
    "dead jobs": "/queues/orders?state=dead",
    "schedules": "/queues/hostile/schedules",
    "dead job": "{dead}",
    "running job": "{running}",
    "flow": "{flow}",
    "workers": "/workers",
    "worker": "/queues/orders/workers/orders-1",
    "outbox": "/outboxes/default",
    "record": "{record}",
    "fleet": "/fleets/pages",
    "target": "/fleets/pages/targets/partners-03",
    "alerts": "/fleets/pages/alerts",
    "maintenance": "/fleets/pages/maintenance",
    "status": "/status",
    "controller": "/controller",
    "agent": "{agent}",
    "tokens": "/tokens",
    "audit": "/audit",
    "lab": "/lab",
    "login": "/login",
    "no such page": "/nowhere",
}
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
#: Only the violations: all that is right would fill megabytes.
AXE = "rules => axe.run(rules).then(({violations}) => ({violations}))"
DESK: Any = {"width": 1280, "height": 800}
PHONE: Any = {"width": 390, "height": 800}
#: What a hostile text would leave behind if it were not escaped.
HARM = """() => ({
  harmed: "harmed" in window,
  elements: [...document.querySelectorAll(
    "main script, main style, main iframe, main base, main link, main object, main embed"
  )].map(e => e.outerHTML.slice(0, 200)),
  handlers: [...document.querySelectorAll("*")].flatMap(e => [...e.attributes])
    .filter(a => a.name.startsWith("on") || a.name === "style" || a.name === "srcdoc")
    .map(a => a.name),
  links: [...document.querySelectorAll("[href], [action], [src]")]
    .map(e => e.getAttribute("href") ?? e.getAttribute("src") ?? e.getAttribute("action"))
    .filter(link => new URL(link, location.href).origin !== location.origin),
})"""
SAFE = {"harmed": False, "elements": [], "handlers": [], "links": []}


@pytest.fixture(scope="module")
def paths(site: Site) -> dict[str, str]:
    """The path of each page."""
    known = {
        "dead": site.first("/queues/orders?state=dead", "/queues/orders/jobs/"),
        "running": site.first("/queues/reports?state=leased", "/queues/reports/jobs/"),
        "record": site.first("/outboxes/default?tab=dead", "/outboxes/default/records/"),
        "agent": site.agent,
        "flow": site.hostile[-1],
    }
    return {name: path.format(**known) for name, path in PAGES.items()}


@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, site: Site, paths: dict[str, str], new_tab: NewTab) -> None:
    session = None if name in ("login", "status") else site.session
    tab = new_tab(storage_state=session, color_scheme="light", viewport=DESK)
    page = tab.page
    _go(tab, site, paths[name], missing=name == "no such page")
    _accessible(page, RULES)
    page.emulate_media(color_scheme="dark")
    _accessible(page, CONTRAST)
    page.set_viewport_size(PHONE)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0, "the page is wider than a phone"
    _accessible(page, CONTRAST)


def _accessible(page: Page, rules: dict[str, Any]) -> None:
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = AxeResults(page.evaluate(AXE, rules | {"resultTypes": ["violations"]}))
    assert found.violations_count == 0, found.generate_report()


def _go(tab: Tab, site: Site, path: str, *, missing: bool = False) -> None:
    answer = tab.page.goto(site.url + path)
    assert answer is not None
    assert answer.status == (404 if missing else 200)
    if missing:  # the browser reports the status itself
        tab.complaints.clear()
    expect(tab.page.locator("h1")).to_be_visible()


def test_hundreds_of_hostile_jobs(site: Site, new_tab: NewTab) -> None:
    tab = new_tab(storage_state=site.session)
    page = tab.page
    start = [*site.hostile, "/", "/queues/hostile", "/workers", "/outboxes/default?tab=all"]
    start += [
        "/fleets/pages?state=dead",
        "/fleets/pages/alerts",
        "/status",
        "/controller",
        "/tokens",
        "/audit",
    ]
    start += [f"/queues/hostile?state={state}" for state in ("leased", "dead", "done", "blocked")]
    for path in start:
        _go(tab, site, path)
        assert page.evaluate(HARM) == SAFE, path
    worker = page.goto(f"{site.url}/workers") and page.locator("a", has_text="onerror").first
    assert worker
    worker.click()
    assert page.evaluate(HARM) == SAFE
    jobs, path = 0, "/queues/hostile?state=ready"
    while path:
        _go(tab, site, path)
        jobs += page.locator("main tbody tr[id^=job-]").count()
        assert page.evaluate(HARM) == SAFE, path
        further = page.get_by_role("link", name="Next page")
        path = further.get_attribute("href") or "" if further.count() else ""
    assert jobs > 150


def test_each_page_is_live(site: Site, paths: dict[str, str], new_tab: NewTab) -> None:
    """Its stream opens, and the first update changes nothing that was not there."""
    page = new_tab(storage_state=site.session).page
    for name, path in paths.items():
        if name in ("login", "status", "no such page"):
            continue
        page.goto(site.url + path)
        heading = page.locator("h1").inner_text()
        expect(page.locator(".live")).to_have_attribute("data-state", "live")
        expect(page.locator("h1")).to_have_text(heading)


def test_by_keyboard_alone(site: Site, new_tab: NewTab) -> None:
    page = new_tab(storage_state=site.session).page
    page.goto(site.url)
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the contents")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    _tab_to(page, "orders")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("orders")


def _tab_to(page: Page, text: str) -> None:
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip() == text:
            return
    raise AssertionError(f"no way to {text} with the Tab key")
