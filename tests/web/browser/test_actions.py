"""Every action by clicking, and what the page shows then; the most usual ones without JavaScript
too."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import NewTab
from tests.web.browser.site import Site

DEAD = "/queues/hostile?state=dead"
WAITS = re.compile("ready|blocked")
with_and_without_script = pytest.mark.parametrize("script", [True, False])


def opened(site: Site, new_tab: NewTab, path: str, *, script: bool = True) -> Page:
    page: Page = new_tab(storage_state=site.session, java_script_enabled=script).page
    page.goto(site.url + path)
    return page


def says(page: Page, text: str) -> None:
    expect(page.locator(".notice[role=status]")).to_contain_text(text)


def confirm(page: Page, question: str, answer: str, within: str = "main") -> None:
    """Click a button that asks, then the button of the answer."""
    box = page.locator(f"{within} details.confirm", has=page.get_by_text(question, exact=True))
    box.locator("summary").click()
    box.get_by_role("button", name=answer).click()


@with_and_without_script
def test_a_job(script: bool, site: Site, new_tab: NewTab) -> None:
    page = opened(site, new_tab, DEAD, script=script)
    row = page.locator("tr[id^=job-] a.id, tr[id^=job-] td.id a").first
    name = row.inner_text()
    row.click()
    state = page.locator("#state")
    expect(state).to_have_text("dead")
    page.get_by_role("button", name="Retry").click()
    expect(state).to_have_text(WAITS)
    confirm(page, "Cancel…", "Cancel the job")
    expect(state).to_have_text("cancelled")
    page.get_by_role("button", name="Retry").click()
    expect(state).to_have_text(WAITS)
    confirm(page, "Put again…", "Put it again")
    says(page, "put")
    page.goto(f"{site.url}{DEAD}")
    expect(page.locator(f"#job-{name}")).to_have_count(0)
    row.click()
    confirm(page, "Drop…", "Delete the job")
    expect(page.locator("h1")).to_have_text("hostile")
    says(page, "was deleted")


@with_and_without_script
def test_jobs_of_a_filter(script: bool, site: Site, new_tab: NewTab) -> None:
    page = opened(site, new_tab, DEAD, script=script)
    attack = "autofocus" if script else "srcdoc"
    page.get_by_label("Text in the last error").fill(attack)
    page.get_by_role("button", name="Filter").click()
    rows = page.locator("tr[id^=job-]")
    expect(rows).to_have_count(5)
    for n in (0, 1):
        rows.nth(n).get_by_role("checkbox").check()
    if script:
        expect(page.locator("#bulk [data-chosen]")).to_have_text("2")
    confirm(page, "Drop…", "Drop the selected jobs")
    says(page, "Dropped 2 jobs.")
    expect(rows).to_have_count(3)
    confirm(page, "Retry all…", "Retry")
    says(page, "Retried 3 jobs.")
    expect(page.get_by_text("No job matches this filter.")).to_be_visible()


def test_all_jobs_of_a_page_are_selected_at_once(site: Site, new_tab: NewTab) -> None:
    page = opened(site, new_tab, "/queues/hostile?state=leased")
    page.get_by_label("Select all jobs on this page").check()
    count = page.locator("tr[id^=job-]").count()
    expect(page.locator("#bulk [data-chosen]")).to_have_text(str(count))
    confirm(page, "Cancel…", "Cancel the selected jobs")
    says(page, f"Cancelled {count} jobs. {count} of them run")
    expect(page.get_by_text("cancel asked").first).to_be_visible()


@with_and_without_script
def test_a_kind_is_resumed_and_paused(script: bool, site: Site, new_tab: NewTab) -> None:
    page = opened(site, new_tab, "/queues/mail", script=script)
    row = page.locator("#kind-newsletter")
    row.get_by_role("button", name="Resume").click()
    says(page, "newsletter")
    expect(row.get_by_text("paused", exact=True)).to_have_count(0)
    row.locator("summary").click()
    row.get_by_label("Reason").fill("<b>typo</b>")
    row.get_by_role("button", name="Pause this kind").click()
    expect(row.get_by_text("paused", exact=True)).to_have_attribute("title", "<b>typo</b>")


def test_workers_get_another_concurrency(site: Site, new_tab: NewTab) -> None:
    page = opened(site, new_tab, "/queues/orders/workers/orders-1")
    page.get_by_label("Concurrency of orders-1").fill("7")
    page.get_by_role("button", name="Set").click()
    says(page, "7")


def test_records_of_an_outbox(site: Site, new_tab: NewTab) -> None:
    page = opened(site, new_tab, "/outboxes/default")
    rows = page.locator("tr[id^=blocked-]")
    expect(rows).to_have_count(2)
    rows.filter(has_text="order-40404").get_by_role("button", name="Retry").click()
    expect(rows).to_have_count(1)
    confirm(page, "Drop…", "Drop the record", "tr[id^=blocked-]")
    expect(rows).to_have_count(0)
    says(page, "ropped")


def test_orders_to_a_fleet(site: Site, new_tab: NewTab) -> None:
    page = opened(site, new_tab, "/fleets/pages/targets/api-01")
    page.get_by_role("button", name="Poll now").click()
    says(page, "ordered")
    expect(page.locator("#pending")).to_be_visible()
    page.goto(f"{site.url}/fleets/pages?group=machines")
    confirm(page, "Pause all targets of this filter…", "Pause them")
    says(page, "12 targets")
    expect(page.locator("tr[id^=target-]").get_by_text("pause…")).to_have_count(12)


def test_an_agent_is_drained(site: Site, new_tab: NewTab) -> None:
    page = opened(site, new_tab, "/controller")
    row = page.locator("tr[id^=agent-]", has_text="mac-1")
    row.get_by_role("button", name="Drain").click()
    expect(row.get_by_text("draining")).to_be_visible()
    row.get_by_role("button", name="Give it jobs again").click()
    expect(row.get_by_text("online")).to_be_visible()


@with_and_without_script
def test_a_token_from_its_making_to_its_end(script: bool, site: Site, new_tab: NewTab) -> None:
    admin = opened(site, new_tab, "/tokens", script=script)
    name = f"night shift {script}"
    admin.locator("#new-token summary").click()
    admin.get_by_label("Name").fill(name)
    admin.get_by_label("Scope").select_option("operate")
    admin.get_by_role("button", name="Make the token").click()
    secret = admin.locator(".secret code").inner_text()

    page: Page = new_tab(java_script_enabled=script).page
    page.goto(f"{site.url}/queues/orders?state=dead")
    page.get_by_label("Token or password").fill(secret)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(re.compile("/queues/orders[?]state=dead$"))
    expect(page.locator(".who")).to_contain_text(f"{name} operate")
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
    page.get_by_role("button", name="Dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in")
    page.goto(site.url)
    expect(page.locator("h1")).to_have_text("Log in")

    row = admin.locator("tr", has_text=name)
    row.get_by_text("Revoke", exact=True).click()
    row.get_by_role("button", name="Revoke the token").click()
    expect(row.get_by_text("revoked")).to_be_visible()
    admin.goto(f"{site.url}/audit")
    for action in ("token.create", "login", "logout", "token.revoke"):
        expect(admin.get_by_role("link", name=action, exact=True).first).to_be_visible()


@with_and_without_script
def test_adaptive_polling_of_a_group(script: bool, site: Site, new_tab: NewTab) -> None:
    page = opened(site, new_tab, "/fleets/pages", script=script)
    row = page.locator("tr[id^=adaptive-]").nth(1)  # after that of all targets
    for choice in ("off", "default"):
        row.locator("select").select_option(choice)
        row.get_by_role("button", name="Set").click()
        says(page, "Adaptive polling of group")
        expect(row.locator("select")).to_have_value(choice)
