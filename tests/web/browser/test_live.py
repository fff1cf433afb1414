"""A live page changes in place: what the reader is doing stays as it is."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pytest
from jinja2 import ChoiceLoader, DictLoader
from playwright.sync_api import Page, expect

from pollwise.web.app import Web, application
from pollwise.web.sources import Sources
from pollwise.web.view import View, Visit
from tests.queues.http.stub import Served
from tests.web.browser.conftest import NewTab
from tests.web.viewers import Everybody

TEMPLATE = """
{% extends "base.html" %}
{% block main %}
<h1>Round {{ round }}</h1>
{% if round == 1 %}<p>Only at first.</p>{% else %}<div><p>Later.</p></div>{% endif %}

<p id="text">A long text that can be selected.</p>
<dl class="figures"><div><dt>Count</dt><dd id="count">{{ round }}</dd></div></dl>
<details id="more"><summary>More</summary><p>Inside {{ round }}</p></details>
<section><form method="get"><input name="plain" aria-label="Plain" value="start"></form></section>
<form id="form" method="get">
  <label>Name <input name="name" id="name" value="start"></label>
  <label>Other <input name="other" id="other" value="from {{ round }}"></label>
  <label>Box <input type="checkbox" name="id" id="box"></label>
</form>
<div class="table" id="region" tabindex="0"><table><tbody>
{% for row in rows %}
<tr id="row-{{ row }}"><td><button type="button" id="button-{{ row }}">{{ row }}</button></td>
<td class="n">{{ round }}</td></tr>
{% endfor %}
</tbody></table></div>
{{ charts.columns([charts.Series("done", [1, 2, round])], [0, 60, 120], "Throughput") }}
{% endblock %}
"""


class ChangingPage(View):
    """A page that tests change."""

    name = "changing"
    path = "/changing"
    template = "changing.html"
    round = 1
    rows: tuple[int, ...] = tuple(range(100))
    renders = 0

    async def marker(self, visit: Visit) -> Hashable:
        return self.round, self.rows

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        self.renders += 1
        return {"round": self.round, "rows": self.rows}


@pytest.fixture
def web() -> Web:
    web = Web(Sources(), Everybody(), refresh=0.05)
    view = ChangingPage(web)
    web.views.append(view)
    web.router.routes.extend(view.routes())
    loader = web.pages.environment.loader
    assert loader is not None
    web.pages.environment.loader = ChoiceLoader([DictLoader({"changing.html": TEMPLATE}), loader])
    return web


@pytest.fixture
def view(web: Web) -> ChangingPage:
    found = web.views[-1]
    assert isinstance(found, ChangingPage)
    return found


@pytest.fixture
def address(web: Web) -> Iterator[str]:
    with Served(lambda: application(web)) as served:
        yield f"{served.url}/changing"


@pytest.fixture
def page(address: str, new_tab: NewTab) -> Page:
    page = new_tab(viewport={"width": 1000, "height": 500}).page
    page.goto(address)
    expect(page.locator(".live")).to_have_attribute("data-state", "live")
    return page


def next_round(page: Page, view: ChangingPage) -> None:
    view.round += 1
    expect(page.locator("#count")).to_have_text(str(view.round))


def test_what_the_reader_does_stays(page: Page, view: ChangingPage) -> None:
    page.locator("#more summary").click()
    page.get_by_label("Plain").fill("kept")
    page.locator("#name").fill("half-fi")
    page.locator("#name").press("ArrowLeft")
    page.locator("#box").check()
    page.locator("#region").evaluate("e => { e.scrollTop = 40 }")
    page.evaluate("window.scrollTo(0, 120)")
    chosen = "getSelection().selectAllChildren(document.getElementById('text'))"
    page.evaluate(chosen)
    before = page.evaluate(DOING)

    next_round(page, view)

    assert page.evaluate(DOING) == before
    assert before["selected"] == "A long text that can be selected."
    assert before["name"] == "half-fi"
    expect(page.get_by_label("Plain")).to_have_value("kept")
    expect(page.locator("#more p")).to_have_text(f"Inside {view.round}")
    expect(page.locator("#other")).to_have_value(f"from {view.round}")


#: Everything of the reader's that an update could spoil.
DOING = """() => ({
  focus: document.activeElement.id,
  caret: document.getElementById("name").selectionStart,
  name: document.getElementById("name").value,
  box: document.getElementById("box").checked,
  open: document.getElementById("more").open,
  scrolled: window.scrollY,
  inner: document.getElementById("region").scrollTop,
  selected: getSelection().toString(),
})"""


def test_rows_come_go_and_change_places_under_the_focus(page: Page, view: ChangingPage) -> None:
    page.locator("#button-7").focus()
    page.evaluate("document.getElementById('row-7').mine = true")

    view.rows = (200, 9, 8, 7, 1, 201)
    next_round(page, view)

    rows = page.locator("tbody tr")
    assert rows.evaluate_all("all => all.map(e => e.id)") == [f"row-{row}" for row in view.rows]
    assert page.evaluate("document.activeElement.id") == "button-7"
    assert page.evaluate("document.getElementById('row-7').mine") is True


def test_a_hidden_tab_closes_its_stream(page: Page, view: ChangingPage, web: Web) -> None:
    hide = """hidden => {
      Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    assert web.streams.total() == 1
    page.evaluate(hide, True)
    page.wait_for_timeout(0)
    _until(page, lambda: web.streams.total() == 0)
    view.round += 1
    page.evaluate(hide, False)
    expect(page.locator("#count")).to_have_text(str(view.round))


def test_an_unchanged_page_is_not_rendered_again(page: Page, view: ChangingPage) -> None:
    next_round(page, view)
    renders = view.renders
    next_round(page, view)
    assert view.renders == renders + 1


def test_values_of_a_chart_by_pointer_and_by_keys(page: Page, view: ChangingPage) -> None:
    tip = page.locator(".chart .tip")
    page.locator(".chart .hit").nth(1).hover()
    expect(tip).to_have_text("00:01 UTC: done 2")
    page.locator("h1").hover()
    expect(tip).to_have_text("")

    page.locator(".plot svg").focus()
    page.keyboard.press("End")
    expect(tip).to_have_text("00:02 UTC: done 1")
    next_round(page, view)
    expect(tip).to_have_text("00:02 UTC: done 2")
    page.keyboard.press("ArrowLeft")
    expect(tip).to_have_text("00:01 UTC: done 2")


def test_without_the_script_the_page_is_whole(address: str, new_tab: NewTab) -> None:
    page = new_tab(java_script_enabled=False).page
    page.goto(address)
    expect(page.locator("h1")).to_have_text("Round 1")
    assert page.locator(".hit title").count() == 3


def _until(page: Page, condition: Any) -> None:
    for _ in range(600):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("did not happen")
