"""What must not be clipped: panels that ask, such as "Pause…", at any width and wherever their
button is, and the errors of a fleet's targets."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import NewTab
from tests.web.browser.site import Site
from tests.web.browser.test_actions import says

PAGES = (
    "/",
    "/queues/orders?state=ready",
    "/queues/hostile?state=dead",
    "/queues/hostile/schedules",
    "{dead}",
    "{flow}",
    "/workers",
    "/queues/orders/workers/orders-1",
    "/outboxes/default?tab=dead",
    "/outboxes/default?tab=all",
    "/fleets/pages",
    "/fleets/pages/targets/partners-03",
    "/fleets/pages/maintenance",
    "/controller",
    "{agent}",
    "/tokens",
)
WIDTHS = (1600, 1280, 390)
#: Opens each panel alone, scrolls the window to it, never a box inside of the page, and returns
#: those of which a corner or the middle is outside of the window or below something else.
HIDDEN = """() => {
  const hidden = [];
  const panels = [...document.querySelectorAll("main details.confirm")];
  const chosen = panels.length > 12 ? [...panels.slice(0, 3), ...panels.slice(-9)] : panels;
  for (const details of chosen) {
    details.querySelector("summary").scrollIntoView({block: "center"});
    details.open = true;
    const panel = details.querySelector(".ask");
    const lowest = panel.getBoundingClientRect().bottom - innerHeight;
    if (lowest > 0) window.scrollBy(0, lowest + 9);
    const {left, right, top, bottom} = panel.getBoundingClientRect();
    const points = [
      [left + 9, top + 9], [right - 9, top + 9], [left + 9, bottom - 9], [right - 9, bottom - 9],
      [(left + right) / 2, (top + bottom) / 2],
    ];
    const missing = points.filter(([x, y]) => !panel.contains(document.elementFromPoint(x, y)));
    if (missing.length) hidden.push([details.id, ...missing.map(point => point.map(Math.round))]);
    details.open = false;
  }
  return [chosen.length, hidden];
}"""


@pytest.mark.parametrize("width", WIDTHS)
def test_no_panel_is_clipped(width: int, site: Site, new_tab: NewTab) -> None:
    size: Any = {"width": width, "height": 800}
    page: Page = new_tab(storage_state=site.session, viewport=size).page
    known = {
        "dead": site.first("/queues/orders?state=dead", "/queues/orders/jobs/"),
        "agent": site.agent,
        "flow": site.hostile[-1],
    }
    seen, clipped = 0, {}
    for path in PAGES:
        page.goto(site.url + path.format(**known))
        expect(page.locator("h1")).to_be_visible()
        count, hidden = page.evaluate(HIDDEN)
        seen += count
        if hidden:
            clipped[path] = hidden
    assert not clipped
    assert seen > 30, seen


@pytest.mark.parametrize("script", [True, False])
def test_the_last_kind_of_a_table_can_be_paused(script: bool, site: Site, new_tab: NewTab) -> None:
    desk: Any = {"width": 1280, "height": 800}
    page: Page = new_tab(storage_state=site.session, viewport=desk, java_script_enabled=script).page
    page.goto(f"{site.url}/queues/orders")
    name = page.locator("#kinds-section tbody tr").last.get_attribute("id")
    row = page.locator(f"#{name}")
    row.locator("summary").click()
    button = row.get_by_role("button", name="Pause this kind")
    expect(button).to_be_in_viewport(ratio=1)
    button.click()
    says(page, "Paused kind")
    row.get_by_role("button", name="Resume").click()
    expect(row.locator("summary")).to_be_visible()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_errors_of_targets_can_be_read(width: int, site: Site, new_tab: NewTab) -> None:
    """Whole, and without scrolling the table sideways."""
    size: Any = {"width": width, "height": 800}
    page = new_tab(storage_state=site.session, viewport=size).page
    page.goto(f"{site.url}/fleets/pages?state=dead")
    cells = page.locator("#main td.rest")
    expect(cells.first).to_be_visible()
    for n, text in enumerate(cells.all_inner_texts()):
        room, needed = cells.nth(n).evaluate("e => [e.clientWidth, e.scrollWidth]")
        assert room >= min(needed, 230), text
        assert needed <= room, text
    table = page.locator(".table").first
    assert table.evaluate("e => e.scrollWidth - e.clientWidth") == 0
