"""Jobs in the admin: what is shown, to whom, and what the actions do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pollwise import NewJob, open_sync
from pollwise.codecs import Key, Keys
from pollwise.errors import KeyMissing, StoreUnavailable
from tests.contrib.django.sites import Site, set_up_django, work

set_up_django()

from django.conf import settings  # noqa: E402
from django.contrib.admin.models import LogEntry  # noqa: E402
from django.contrib.auth.models import Permission, User  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from django.urls import reverse  # noqa: E402
from grocer.tasks import deliver, fail, slow  # noqa: E402

from pollwise.contrib.django import admin as jobs_admin  # noqa: E402
from pollwise.contrib.django import queue_url  # noqa: E402
from pollwise.contrib.django.api import task_backends  # noqa: E402

LIST = "/admin/pollwise/queuedjob/"


@pytest.fixture
def operator(site: Site) -> Client:
    """A client that may do everything."""
    User.objects.all().delete()
    User.objects.create_superuser("operator", password="x")
    return client_of("operator")


def client_of(name: str) -> Client:
    client = Client()
    client.force_login(User.objects.get(username=name))
    return client


def with_permissions(*names: str) -> Client:
    user = User.objects.create_user("limited", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(codename__in=[f"{n}_queuedjob" for n in names])
    )
    return client_of("limited")


def queue() -> Any:
    return task_backends["default"].queue("default")


def state_of(result: Any) -> str | None:
    info = queue().call("get", result.id.partition(":")[2])
    return None if info is None else info.state


def page(client: Client, **asked: str) -> str:
    answer = client.get(LIST, asked)
    assert answer.status_code == 200
    return str(answer.content.decode())


def shown(html: str) -> list[str]:
    """The ids of the jobs in a list."""
    return re.findall(r'name="job" value="([^"]+)"', html)


def act(client: Client, action: str, *results: Any, **more: str) -> Any:
    ids = [result.id.partition(":")[2] for result in results]
    return client.post(LIST, {"action": action, "job": ids, **more}, follow=True)


def dead() -> Any:
    result = fail.enqueue("gone")
    work(task_backends["default"].worker(), lambda: state_of(result) == "dead")
    return result


def test_the_list_shows_all_jobs_page_by_page(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_admin, "PER_PAGE", 2)
    ids = [deliver.enqueue(f"tea-{n}").id.partition(":")[2] for n in range(5)]
    seen, html = [], page(operator)
    while True:
        seen.append(shown(html))
        following = re.search(r'href="\?([^"]*)">Next page', html)
        if following is None:
            break
        html = operator.get(f"{LIST}?{following[1].replace('&amp;', '&')}").content.decode()
        assert "First page" in html
    assert seen == [ids[:2], ids[2:4], ids[4:]]


def test_the_list_is_filtered(operator: Client) -> None:
    gone, waiting, other = dead(), deliver.enqueue("tea"), slow.enqueue("coffee")
    assert len(shown(page(operator))) == 2
    assert shown(page(operator, state="dead")) == [gone.id.partition(":")[2]]
    assert shown(page(operator, kind="grocer.tasks.deliver")) == [waiting.id.partition(":")[2]]
    assert shown(page(operator, kind="grocer.tasks.deliver", state="dead")) == []
    assert shown(page(operator, queue="slow")) == [other.id.partition(":")[2]]
    html = page(operator)
    assert "dead (1)" in html
    assert "grocer.tasks.deliver (1)" in html
    assert operator.get(LIST, {"queue": "nowhere"}).status_code == 404
    assert "is not one of ready" in page(operator, state="odd")


def test_a_job_is_shown_whole_and_nothing_in_it_is_markup(operator: Client) -> None:
    [job_id] = queue().call(
        "put", NewJob("<b>kind</b>", {"text": "<script>x</script>"}, headers={"h": "<i>"})
    )
    for html in (
        page(operator),
        operator.get(f"{LIST}default:{job_id}/change/").content.decode(),
    ):
        assert "<b>kind" not in html
        assert "&lt;b&gt;kind" in html
        assert "<script>x" not in html
    assert "&lt;script&gt;x" in html
    assert operator.get(f"{LIST}default:99999/change/").status_code == 404
    assert operator.get(f"{LIST}nowhere:1/change/").status_code == 404


def test_errors_of_a_job_are_shown(operator: Client) -> None:
    job_id = dead().id
    html = operator.get(f"{LIST}{job_id}/change/").content.decode()
    assert "grocer.tasks.OutOfStock: no gone left" in html
    assert "Retry" in html
    assert "Cancel</button>" not in html


def test_actions_retry_cancel_and_drop(operator: Client) -> None:
    first, second, waiting = dead(), dead(), deliver.enqueue("tea")
    assert b"1 of 2 retried" in act(operator, "retry", first, waiting).content
    assert state_of(first) == "ready"
    assert b"1 job cancelled" in act(operator, "cancel", waiting).content
    assert state_of(waiting) == "cancelled"
    assert b"Are you sure?" in act(operator, "drop", second).content
    assert state_of(second) == "dead"
    assert b"1 job dropped" in act(operator, "drop", second, sure="yes").content
    assert state_of(second) is None
    assert [entry.object_id for entry in LogEntry.objects.all()] == [
        second.id,
        waiting.id,
        *(each.id for each in (waiting, first)),
    ]
    assert b"Select jobs first" in act(operator, "retry").content
    assert b"No action selected" in act(operator, "format", first).content


def test_actions_of_one_job(operator: Client) -> None:
    result = dead()
    url = f"{LIST}{result.id}/change/"
    operator.post(url, {"action": "retry"})
    assert state_of(result) == "ready"
    operator.post(url, {"action": "cancel"})
    assert state_of(result) == "cancelled"


def test_permissions_are_respected(operator: Client) -> None:
    result = dead()
    assert Client().get(LIST).status_code == 302  # to the login
    nobody = with_permissions()
    assert nobody.get(LIST).status_code == 403
    assert nobody.get(f"{LIST}{result.id}/change/").status_code == 403
    User.objects.filter(username="limited").delete()
    viewer = with_permissions("view")
    assert "Go</button>" not in page(viewer)
    for action in ("retry", "cancel", "drop"):
        assert act(viewer, action, result, sure="yes").status_code == 403
        assert viewer.post(f"{LIST}{result.id}/change/", {"action": action}).status_code == 403
    User.objects.filter(username="limited").delete()
    changer = with_permissions("view", "change")
    assert act(changer, "drop", result, sure="yes").status_code == 403
    assert state_of(result) == "dead"
    assert b"1 job retried" in act(changer, "retry", result).content


def test_what_a_form_does_needs_its_token(operator: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get())
    assert act(strict, "retry", dead()).status_code == 403


def test_a_store_in_trouble_is_an_error_on_the_page(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("the store is away; wait for it")

    result = deliver.enqueue("tea")
    monkeypatch.setattr("pollwise.contrib.django.queues.DjangoQueue.call", broken)
    assert "the store is away; wait for it" in page(operator)
    assert b"the store is away" in act(operator, "retry", result).content
    found = operator.get(f"{LIST}{result.id}/change/", follow=True)
    assert b"the store is away" in found.content


def test_what_is_encrypted_runs_but_is_never_shown(operator: Client, tmp_path: Path) -> None:
    Keys((Key.new(),)).save(tmp_path / "keys")
    codec = {"payloads": "aes-gcm", "key_file": str(tmp_path / "keys")}
    pollwise = {"queue": {"database": "default", "keep": "1h"}, "codec": codec}
    with override_settings(POLLWISE=pollwise, TASKS=settings.TASKS):  # a backend that has the key
        result = deliver.enqueue("secret")
        secretly = slow.using(queue_name="default").enqueue("secret")
        work(task_backends["default"].worker(), lambda: state_of(secretly) == "done")
        secretly.refresh()
        assert secretly.return_value == "slowly: secret"
        assert deliver.get_result(result.id).args == ["secret"]
        for html in (
            page(operator),
            *(operator.get(f"{LIST}{r.id}/change/").content.decode() for r in (result, secretly)),
        ):
            assert "secret" not in html
        assert html.count("&lt;encrypted, key id") == 2  # the payload and the result
    with override_settings(TASKS=settings.TASKS), pytest.raises(KeyMissing):
        deliver.get_result(result.id)


def test_the_index_of_the_admin_links_to_jobs(operator: Client) -> None:
    html = operator.get("/admin/").content.decode()
    assert reverse("admin:pollwise_queuedjob_changelist") in html
    assert "Pollwise" in html


def test_the_admin_sees_what_others_put(operator: Client) -> None:
    with open_sync(queue_url()) as others:
        [job_id] = others.put(NewJob("resize", {"image": 7}))
    assert shown(page(operator, kind="resize")) == [job_id]
