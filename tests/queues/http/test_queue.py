"""What `http://` queues do besides the contract: addresses, tokens, errors, lost answers, hints."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import pollwise
from pollwise import Concurrency, Rate
from pollwise.controller.http.queues import views
from pollwise.controller.http.queues.routes import QueueApi
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.errors import (
    ConfigError,
    JobError,
    LeaseLost,
    PayloadError,
    StoreError,
    StoreUnavailable,
    UniqueConflict,
)
from pollwise.queues.breakers import OpenBreaker
from pollwise.queues.http.client import RequestRefused, TokenSource
from pollwise.queues.http.queue import HttpQueue
from pollwise.queues.limits.record import kind_limits
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.sqs.queue import SqsQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.events import (
    ChoreFailed,
    ConcurrencyChanged,
    HintsLost,
    HintsProven,
    KindUnhandled,
    PollFinished,
)
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import Claim, Job, NewJob, Settlement
from pollwise.runtime.jobs.new_job import LIMIT_GROUP_HEADER
from pollwise.storage.messages import message_of
from pollwise.testing.conformance.steering import INFO
from pollwise.worker import Worker, unhandled
from tests.queues.benches import migrated
from tests.queues.http.stub import Served, authorise, dial_inside, inside, make_api, make_app
from tests.support.daemons import HOST
from tests.support.kit import Seen, options, working
from tests.support.nginx import Nginx
from tests.support.private import write_private
from tests.support.proxy import Proxy
from tests.support.servers import Postgres, Servers


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    write_private(file, "admin\n")
    return file


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    store = tmp_path / "served.db"
    with Served(lambda: make_app(make_api(store, Clock()))) as served:
        yield served


# Addresses: the schemes are shared with SQS


@pytest.mark.parametrize(
    ("url", "base", "name"),
    [
        ("http://localhost:8420", "http://localhost:8420", "default"),
        ("http://localhost:8420/", "http://localhost:8420", "default"),
        ("https://builds.example.com/?queue=mail", "https://builds.example.com", "mail"),
        ("https://example.com/farm/?queue=a", "https://example.com/farm", "a"),
        ("https://example.com/a/farm", "https://example.com/a/farm", "default"),
        ("http://[::1]:8420?queue=a%20b", "http://[::1]:8420", "a b"),
    ],
)
def test_the_address_of_a_controller(url: str, base: str, name: str) -> None:
    queue = open_queue(url)
    assert isinstance(queue, HttpQueue)
    assert (queue._http.base, queue.name) == (base, name)
    again = open_queue(queue.url)
    assert (again.url, again.name) == (queue.url, name)


def test_options_of_an_address(token: Path) -> None:
    queue = open_queue(f"http://host?queue=a&token_file={token}&timeout=5s&keep=1h")
    assert isinstance(queue, HttpQueue)
    assert (queue.keep, queue.token()) == (3600, "admin")
    assert open_queue(queue.url).url == queue.url


@pytest.mark.parametrize(
    "url",
    [
        "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs?dead=x",
        "http://localhost:4566/000000000000/jobs",
        "http://localhost:4566/queue/eu-west-1/000000000000/jobs",
        "https://sqs.test/1/jobs",
    ],
)
def test_the_url_of_an_sqs_queue(url: str) -> None:
    assert isinstance(open_queue(url), SqsQueue)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://host?token=hunter2", "a token does not belong in a URL"),
        ("http://hunter2@host", "credentials"),
        ("http://me:hunter2@host", "credentials"),
        ("http://host?region=eu", "is an option of SQS"),
        ("http://host/?que=a", "did you mean 'queue'?"),
        ("http://", "not the address of a controller"),
        ("http://host:x", "port"),
        ("http://host?queue=agents", "the controller's own jobs"),
        ("http://host?queue=", "queue = ''"),
        ("https://sqs.eu-west-1.amazonaws.com/jobs", "not the URL of an SQS queue"),
    ],
)
def test_addresses_that_are_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_queue(url)
    assert says in str(raised.value)
    assert "hunter2" not in str(raised.value)


# Tokens


def test_where_the_token_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "t"
    write_private(file, " abc\n")
    assert TokenSource(file, {"POLLWISE_TOKEN": "x"}).read() == "abc"
    assert TokenSource(None, {"POLLWISE_TOKEN": "x"}).read() == "x"
    assert TokenSource(None, {"POLLWISE_TOKEN_FILE": str(file)}).read() == "abc"
    write_private(file, "other")
    assert TokenSource(file).read() == "other"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601, 0o660])
def test_a_token_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = write_private(tmp_path / "t", "hunter2")
    (tmp_path / "link").symlink_to(file)
    file.chmod(mode)
    for path in (file, tmp_path / "link"):
        with pytest.raises(ConfigError, match=rf"mode {mode:04o}, .*run `chmod 600") as raised:
            TokenSource(path).read()
        assert "hunter2" not in str(raised.value)
        with pytest.raises(ConfigError, match="chmod 600"):
            TokenSource(None, {"POLLWISE_TOKEN_FILE": str(path)}).read()
    file.chmod(0o400)
    assert TokenSource(tmp_path / "link").read() == "hunter2"


def test_a_pipe_is_no_token_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t", 0o600)
    with pytest.raises(ConfigError, match="is not a file"):
        TokenSource(tmp_path / "t").read()


@pytest.mark.skipif(os.geteuid() != 0, reason="a credential belongs to root")
def test_a_credential_of_systemd_may_have_an_access_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    file = write_private(folder / "token", "secret")
    file.chmod(0o440)  # the mask of its access list
    with pytest.raises(ConfigError, match="mode 0440"):
        TokenSource(file).read()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    assert TokenSource(file).read() == "secret"
    for mode in (0o444, 0o460, 0o644):
        file.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            TokenSource(file).read()
    other = write_private(tmp_path / "token", "secret")
    other.chmod(0o440)
    with pytest.raises(ConfigError, match="chmod 600"):
        TokenSource(folder / ".." / "token").read()


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "cannot be read"), ("", "does not hold a token"), ("hun ter2", "does not hold a token"),
     ("hunter2\nhunter2", "does not hold a token"), ("hunter2" * 200, "does not hold a token"),
     ("hunter2\u00e9", "is not text")],
)  # fmt: skip
def test_a_file_without_a_token(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "t"
    if text is not None:
        write_private(file, text)
    with pytest.raises(ConfigError, match=says) as raised:
        TokenSource(file).read()
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigError, match="POLLWISE_TOKEN_FILE"):
        TokenSource(None, {}).read()


def test_a_rotated_token_is_read_again(token: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with inside(make_api(None, clock), token, clock) as queue:
            await queue.put(NewJob("a"))
            queue._token = "old"
            assert (await queue.stats()).ready == 1

    clock.run(main())


BREAKER = OpenBreaker("a", 1, 0.0, 60.0, "w").to_note()


@pytest.mark.parametrize(
    ("scope", "may", "may_not"),
    [
        (
            "put",
            ("put", "stats", "kinds", "jobs", "paused", "workers", "history", "limits"),
            (
                "set_limits",
                "claim",
                "retry",
                "cancel",
                "pause",
                "record_worker",
                "fold_history",
                "schedule",
                "tick",
                "paces",
            ),
        ),
        (
            "worker",
            (
                "claim",
                "stats",
                "kinds",
                "paused",
                "record_worker",
                "forget_worker",
                "fold_history",
                "schedules",
                "tick",
                "paces",
                "limits",
                "breakers",
                "swap_breaker",
            ),
            (
                "close_breaker",
                "limit_use",
                "set_limits",
                "put",
                "jobs",
                "drop",
                "cancel",
                "pause",
                "workers",
                "set_concurrency",
                "history",
                "schedule",
                "run_schedule",
            ),
        ),
        (
            "operate",
            (
                "cancel",
                "retry",
                "drop",
                "stats",
                "jobs",
                "pause",
                "paused",
                "resume",
                "workers",
                "schedule",
                "run_schedule",
                "limits",
                "limit_use",
                "set_limits",
                "remove_limits",
                "breakers",
                "close_breaker",
            ),
            ("put", "claim", "renew", "record_worker", "forget_worker", "tick"),
        ),
        (
            "none",
            (),
            (
                "put",
                "claim",
                "renew",
                "stats",
                "kinds",
                "jobs",
                "retry",
                "drop",
                "cancel",
                "paused",
            ),
        ),
    ],
)
def test_scopes(tmp_path: Path, scope: str, may: tuple[str, ...], may_not: tuple[str, ...]) -> None:
    clock = VirtualClock()
    file = tmp_path / "scope"
    write_private(file, scope)

    async def main() -> None:
        async with inside(make_api(None, clock), file, clock) as queue:
            claim = Claim(Job("1", "", "a", None, None, 0, 1, 0.0, 0.0, None), 1, "w", 0.0)
            calls: dict[str, Any] = {
                "put": lambda: queue.put(NewJob("a")),
                "claim": lambda: queue.claim("w", 1, 30),
                "stats": queue.stats,
                "jobs": queue.jobs,
                "kinds": queue.stats_by_kind,
                "renew": lambda: queue.renew([claim], 30),
                "cancel": lambda: queue.cancel(["1"]),
                "retry": queue.retry,
                "drop": queue.drop,
                "pause": lambda: queue.pause("a"),
                "resume": lambda: queue.resume("a"),
                "paused": queue.paused,
                "workers": queue.workers,
                "record_worker": lambda: queue.record_worker(INFO, 60),
                "forget_worker": lambda: queue.forget_worker(INFO),
                "history": queue.history,
                "fold_history": queue.fold_history,
                "limits": queue.limits.list,
                "limit_use": lambda: queue._limit_use(kind_limits("a", Concurrency(1)), 5),
                "set_limits": lambda: queue.limits.set("a", Concurrency(1)),
                "remove_limits": lambda: queue.limits.remove("a"),
                "breakers": queue.breakers.list,
                "swap_breaker": lambda: queue.breakers.swap("a", None, BREAKER),
                "close_breaker": lambda: queue.breakers.close("a"),
                "schedules": queue.schedules.list,
                "schedule": lambda: queue.schedules.set("s", NewJob("a"), every="1h"),
                "run_schedule": lambda: queue.schedules.run_given("s", '{"kind":"a","every":60}'),
                "tick": lambda: queue.schedules.put_tick("s", "{}"),
                "paces": queue.paces,
                "set_concurrency": lambda: queue.set_concurrency("w", 2),
            }
            for name in may:
                await calls[name]()
            for name in may_not:
                with pytest.raises(StoreError, match=r"answered 40[13]") as raised:
                    await calls[name]()
                assert raised.value.permanent

    clock.run(main())


def test_a_worker_with_its_own_token_is_seen_and_steered(tmp_path: Path) -> None:
    clock = VirtualClock()
    files = {scope: tmp_path / scope for scope in ("worker", "operate", "put")}
    for scope, file in files.items():
        write_private(file, scope)

    async def main() -> None:
        api = make_api(None, clock)
        seen = Seen()
        ran: list[object] = []
        async with (
            inside(api, files["worker"], clock) as queue,
            inside(api, files["operate"], clock) as operator,
            inside(api, files["put"], clock) as putter,
        ):
            worker = Worker(queue, name="far", events=seen.events)

            @worker.handle("mail")
            async def mail(job: Job) -> None:
                ran.append(job.payload)

            async with working(worker, options(concurrency=2)):
                await clock.advance(10)
                [info] = await operator.workers()
                assert (info.name, info.kinds, info.concurrency) == ("far", ("mail",), 2)
                await operator.pause("mail", why="down")
                assert (await putter.paused())["mail"].by == "operate"
                await putter.put(NewJob("mail", 1))
                await clock.advance(100)
                assert ran == []
                await operator.resume("mail")
                await clock.advance(1)
                assert ran == [1]
                await operator.set_concurrency("far", 5)
                await clock.advance(130)
                assert [each.after for each in seen.of(ConcurrencyChanged)] == [5]
            assert await operator.workers() == []
        await api.close()

    clock.run(main())


def test_limits_pass_through(token: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    write_private(tmp_path / "worker", "worker")

    async def main() -> None:
        api, seen = make_api(None, clock), Seen()
        most, running = 0, 0
        async with (
            inside(api, token, clock) as queue,
            inside(api, tmp_path / "worker", clock) as far,
        ):
            worker = Worker(far, options(concurrency=10, prefetch=10), events=seen.events)

            @worker.task(limit=Concurrency(2, by="tenant"))
            async def send(tenant: str) -> None:
                nonlocal most, running
                running += 1
                most = max(most, running)
                await asyncio.sleep(1)
                running -= 1

            made = await queue.limits.set(
                "send", [Concurrency(3), Concurrency(2, by="tenant")], weights={"a": 2}
            )
            assert await queue.limits.list() == [made]
            await queue.put([send.job(tenant) for tenant in "ab" for _ in range(6)])
            claims = await queue.claim("w", 10, 30)
            assert sorted(each.job.headers[LIMIT_GROUP_HEADER] for each in claims) == [
                "a",
                "a",
                "b",
            ]
            assert far._limited == frozenset()
            [use] = await queue.limits.use("send", groups=5)
            assert (use.limits, use.running, use.waiting) == (made, 3, 9)
            assert {each.group: (each.running, each.waiting) for each in use.groups} == {
                "a": (2, 4), "b": (1, 5),
            }  # fmt: skip
            assert await queue.limits.use("other") == []
            await queue.settle([Settlement.done(claim) for claim in claims])
            async with working(worker, options(concurrency=10, prefetch=10)):
                await clock.advance(30)
            assert most == 3
            assert far._limited == {"send"}  # as the claims said
            [failed] = seen.of(ChoreFailed)  # its token may not set its own limits
            assert (failed.chore, "403" in failed.error) == ("limits", True)
            assert (await queue.stats()).ready == 0
            assert await queue.limits.remove("send")
            assert not await queue.limits.remove("send")
        await api.close()

    clock.run(main())


@pytest.mark.parametrize(
    "value",
    [
        "", "[]", "{}", '{"most":0}', '{"most":1.5}', '{"fair":true,"by":7}', '{"rate":[1,2]}',
        '{"rate":[1,1e400,1]}', '{"rate":[10000000,60,1]}', '{"most":1,"weights":{"a":2}}',
        '{"rate":[Infinity,60,1]}', '{"rate":[1,60,Infinity]}', '{"most":1,"set_at":1e999}',
        "[" * 5000, 7, "x" * 40_000,
    ],
)  # fmt: skip
def test_limits_from_the_network_are_checked(token: Path, value: object) -> None:
    clock = VirtualClock()

    async def main() -> None:
        api = make_api(None, clock)
        async with inside(api, token, clock) as queue:
            with pytest.raises(ConfigError, match=r"send|Rate|Concurrency|by = "):
                await queue._post("set-limits", {"kind": "send", "value": value})
            assert await queue.limits.list() == []
        await api.close()

    clock.run(main())


@pytest.mark.parametrize(
    ("call", "value", "why"),
    [
        ("set-limits", '{"rate":[-1,60,5]}', "the amount of rate = -1 must be a whole number"),
        ("set-limits", '{"most":0}', "most = 0 must be a whole number from 1"),
        ("set-limits", "{}", "it has no limit"),
        ("set-limits", '{"most"', "not JSON"),
        ("set-limits", 7, "it is not text"),
        ("set-schedule", '{"kind":"a","cron":"0 25 * * *"}', "the hour '25' is not valid"),
        ("set-schedule", '{"kind":"a","every":3600,"jitter":-1}', "jitter"),
        ("set-schedule", '{"kind":"","every":3600}', "kind"),
        ("set-schedule", '{"every":3600}', "not JSON as Pollwise writes it"),
    ],
)
def test_what_the_network_sends_is_refused_with_the_reason(
    token: Path, call: str, value: object, why: str
) -> None:
    clock = VirtualClock()

    async def main() -> None:
        api = make_api(None, clock)
        async with inside(api, token, clock) as queue:
            name = "kind" if call == "set-limits" else "name"
            with pytest.raises(ConfigError, match=why):
                await queue._post(call, {name: "a", "value": value})
            assert await queue.limits.list() == []
            assert await queue.schedules.list() == []
        await api.close()

    clock.run(main())


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"limits": '{"most":2}'}, r"no field 'limits'; the fields are kind, value"),
        ({"value": None, "limits": 1}, "no field 'limits'"),
        ({}, "needs a `value`"),
    ],
)
def test_a_misspelt_call_removes_no_limits(token: Path, more: dict[str, Any], wrong: str) -> None:
    clock = VirtualClock()

    async def main() -> None:
        api = make_api(None, clock)
        async with inside(api, token, clock) as queue:
            kept = await queue.limits.set("send", Concurrency(1))
            with pytest.raises(ConfigError, match=wrong):
                await queue._post("set-limits", {"kind": "send", **more})
            assert await queue.limits.list() == [kept]
            assert await queue._post("set-limits", {"kind": "send", "value": None})
            assert await queue.limits.list() == []
        await api.close()

    clock.run(main())


# Errors


def test_refusals_are_those_of_any_queue(token: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        api = make_api(None, clock)
        async with inside(api, token, clock) as queue:
            await queue.put(NewJob("a", 1, unique="u"))
            with pytest.raises(UniqueConflict, match="is taken by job"):
                await queue.put(NewJob("a", 2, unique="u"))
            [claim] = await queue.claim("w", 1, 30)
            await queue.settle([Settlement.done(claim)])
            with pytest.raises(LeaseLost) as lost:
                await queue.settle([Settlement.done(claim)])
            assert lost.value.lost == (claim.job.id,)
            assert (await queue.renew([claim], 30)).lost == (claim.job.id,)
            with pytest.raises(ConfigError, match="after"):
                await queue.arrivals("x")
            assert await queue.jobs(kind=[]) == []
        async with inside(api, token, clock, max_payload_bytes=10**9) as queue:
            with pytest.raises(PayloadError, match="max_payload_bytes"):
                await queue.put(NewJob("a", "x" * 2_000_000))
            with pytest.raises(PayloadError, match="16777216"):
                await queue.put([NewJob("a", "x" * 900_000) for _ in range(20)])

    clock.run(main())


@pytest.mark.parametrize(
    ("status", "body", "headers", "error", "says"),
    [
        (200, b"<html>", {}, StoreError, "other than a JSON object"),
        (200, b"[]", {}, StoreError, "other than a JSON object"),
        (301, b"", {"Location": "https://u:hunter2@x/"}, StoreError, "redirects to https://u:"),
        (404, b"<html>", {}, StoreError, "check that the address is that of a controller"),
        (413, b"<html>", {}, PayloadError, "a proxy in front of it"),
        (418, b"te\x1b[31ma\npot", {}, StoreError, "te [31ma pot"),
        (429, b"{}", {"Retry-After": "7"}, StoreUnavailable, "429"),
        (403, b"{}", {"Retry-After": "7"}, StoreUnavailable, "403"),
        (500, b"oops", {}, StoreUnavailable, "500: oops"),
        (502, b"<html>", {}, StoreUnavailable, "a proxy answered"),
        (503, b"{}", {}, StoreUnavailable, "503"),
        (500, b'{"error": {"code": "store_refused", "message": "m"}}', {}, StoreError, "m"),
        (422, b'{"error": {"code": "job", "message": "bad"}}', {}, JobError, "bad"),
    ],
)
def test_answers_that_are_not_the_controllers(
    token: Path,
    status: int,
    body: bytes,
    headers: dict[str, str],
    error: type[Exception],
    says: str,
) -> None:
    async def answer(_: Any) -> Response:
        return PlainTextResponse(body, status, headers)

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["POST", "GET"])])

    async def main() -> None:
        queue = HttpQueue("http://x", token_file=token, transport=httpx.ASGITransport(app))
        with pytest.raises(error) as raised:
            await queue.claim("w", 1, 30)
        assert says in str(raised.value)
        assert "hunter2" not in str(raised.value)
        assert getattr(raised.value, "permanent", True) is (error is not StoreUnavailable)
        await queue.close()

    asyncio.run(main())


def test_a_controller_that_is_not_there(token: Path) -> None:
    async def main() -> None:
        async with HttpQueue(f"http://{HOST}:9", token_file=token) as queue:
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await queue.put(NewJob("a"))

    asyncio.run(main())


HELD = {"id": "1", "token": 1}
DEEP = json.loads("[" * 201 + "]" * 201)
LARGE = "x" * (1024 * 1024)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("put", [], "not a JSON object"),
        ("put", {"jobs": 1}, "must be a list"),
        ("put", {"jobs": [{"kind": "a", "payload": "\ud800"}]}, "half of a surrogate pair"),
        ("claim", {"worker": "w", "kinds": ["\udfff"]}, "half of a surrogate pair"),
        ("endings", {"ids": ["\udc00\ud800"]}, "half of a surrogate pair"),
        ("set-schedule", {"name": "s", "expected": "\ud800"}, "half of a surrogate pair"),
        ("put", {"jobs": [{}]}, "with a `kind`"),
        ("put", {"jobs": [{"kind": "a", "x": 1}]}, "unknown field 'x'"),
        ("put", {"jobs": [{"kind": "a", "delay": "soon"}]}, "delay"),
        ("put", {"jobs": [{"kind": "a", "headers": ["x"]}]}, "must be a mapping"),
        (
            "put",
            {"jobs": [{"kind": "a", "limit_group": "g", "headers": ["x"]}]},
            "must be a mapping",
        ),
        ("put", {"jobs": [{"kind": "a", "headers": {"x": 1}}]}, "the header 'x'"),
        ("put", {"jobs": [{"kind": "a", "headers": {"x": "y" * 9000}}]}, "at most 8192"),
        ("put", {"jobs": [{"kind": "a"}], "nonce": "x"}, "nonce"),
        ("claim", {"limit": 1}, "worker"),
        ("claim", {"worker": "w", "limit": "many"}, "limit"),
        ("claim", {"worker": "w", "lease": []}, "lease"),
        ("claim", {"worker": "w", "lease": -1}, "lease"),
        ("claim", {"worker": "w", "kinds": "a"}, "kinds"),
        ("claim", {"worker": "w", "check": 7}, "message"),
        ("settle", {}, "settlements"),
        ("settle", {"settlements": [{"id": "1", "token": "x"}]}, "token"),
        ("settle", {"settlements": [{"id": "1", "token": 2**70}]}, "token"),
        ("settle", {"settlements": [{"id": "1", "token": 1, "action": "x"}]}, "action"),
        ("settle", {"settlements": [{**HELD, "action": "done", "result": DEEP}]}, "nests deeper"),
        ("settle", {"settlements": [{**HELD, "action": "done", "result": LARGE}]}, "the result of"),
        ("renew", {"claims": [7], "lease": 1}, "object"),
        ("renew", {"claims": [{**HELD, "progress": 0.5}], "lease": 1}, "an object"),
        ("renew", {"claims": [{**HELD, "progress": {"fraction": 2}}], "lease": 1}, "from 0 to 1"),
        ("renew", {"claims": [{**HELD, "progress": {"fraction": "1"}}], "lease": 1}, "from 0 to 1"),
        ("renew", {"claims": [{**HELD, "progress": {"note": [1]}}], "lease": 1}, "note"),
        ("pause", {"kind": [1]}, "kind"),
        ("pause", {"kind": "\x00" * 300}, "kind"),
        ("pause", {"kind": "a", "why": [1]}, "why"),
        ("pause", {"by": {"x": 1}}, "by"),
        ("resume", {"kind": ""}, "kind"),
        ("record-worker", {"ttl": 1}, "describes a worker"),
        ("record-worker", {"worker": {"name": "w", "instance": "a b"}, "ttl": 1}, "instance"),
        ("record-worker", {"worker": {"name": "w", "instance": "a"}}, "ttl"),
        ("record-worker", {"worker": {"name": "\x00", "instance": "a"}, "ttl": 1}, "worker"),
        ("concurrency", {"worker": "w", "concurrency": "4"}, "whole number"),
        ("concurrency", {"worker": "w", "concurrency": 4}, "no worker 'w' is running"),
        ("cancel", {}, "ids"),
        ("cancel", {"ids": "a"}, "ids"),
        ("cancel", {"ids": ["1"] * 10_001}, "at most 10000"),
        ("cancel", {"ids": ["1"], "nonce": 7}, "nonce"),
        ("retry", {"ids": "a"}, "ids"),
        ("flow", {"id": "1", "most": 0}, "most = 0 must be"),
        ("flow", {"id": "1", "most": "9"}, "most = '9' must be"),
        ("flow", {"id": "1", "most": 10_001}, "from 1 to 10000"),
        ("hint", {"message": "x" * 9000}, "message"),
    ],
)
def test_what_the_controller_refuses_to_read(path: str, body: Any, says: str) -> None:
    async def main() -> None:
        api = make_api(None, Clock())
        transport = httpx.ASGITransport(make_app(api))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            headers = {"Authorization": "Bearer admin"}
            text = json.dumps(body)
            answer = await http.post(f"/api/queue/q/{path}", content=text, headers=headers)
            assert answer.status_code in (400, 422), answer.text
            assert says in answer.json()["error"]["message"]
            refused = await http.post(f"/api/queue/q/{path}", content=text)
            assert refused.status_code == 401
            own = await http.post(f"/api/queue/agents/{path}", json={}, headers=headers)
            assert (own.status_code, own.json()["error"]["code"]) == (403, "controllers_own")
        await api.close()

    asyncio.run(main())


def test_a_single_run_that_may_not_see_what_waits_for_a_limit_says_so(
    token: Path, tmp_path: Path
) -> None:
    clock = VirtualClock()
    write_private(tmp_path / "worker", "worker")

    async def main() -> None:
        api, seen = make_api(None, clock), Seen()
        async with (
            inside(api, token, clock) as queue,
            inside(api, tmp_path / "worker", clock) as far,
        ):
            await queue.limits.set("send", Rate(1, per="1h", burst=1))
            await queue.put([NewJob("send"), NewJob("send")])
            worker = Worker(far, events=seen.events)

            @worker.handle("send")
            async def send(job: Job) -> None: ...

            summary = await worker.run_once(options())
            assert (summary.done, summary.limited) == (1, {})
            [failed] = seen.of(ChoreFailed)
            assert failed.chore == "limits"
            assert "worker" in failed.error

    clock.run(main())


def test_the_last_job_of_a_large_flow_is_shown(token: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with inside(make_api(None, clock), token, clock) as queue:
            parts = [NewJob("part") for _ in range(1200)]
            ids = await queue.put([*parts, NewJob("join", after=parts)])
            view = await queue.flow(ids[-1])
            assert view is not None
            assert view.more
            assert [each.info.job.id for each in view.jobs] == [*ids[:1100], ids[-1]]

    clock.run(main())


@pytest.mark.parametrize("asked", ["jobs?live=yes", "jobs?limit=x", "stats?by=key"])
def test_what_the_controller_refuses_to_show(asked: str) -> None:
    async def main() -> None:
        api = make_api(None, Clock())
        transport = httpx.ASGITransport(make_app(api))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            headers = {"Authorization": "Bearer admin"}
            answer = await http.get(f"/api/queue/q/{asked}", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "config")
        await api.close()

    asyncio.run(main())


def test_views_never_show_the_claim_of_a_job() -> None:
    async def main() -> None:
        api = make_api(None, Clock())
        transport = httpx.ASGITransport(make_app(api))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            headers = {"Authorization": "Bearer admin"}
            about = {"kind": "a", "headers": {"trace": "1"}}
            await http.post("/api/queue/q/put", json={"jobs": [about]}, headers=headers)
            claimed = await http.post("/api/queue/q/claim", json={"worker": "w"}, headers=headers)
            [claim] = claimed.json()["claims"]
            assert claim["headers"] == about["headers"]
            for path in ("jobs", f"jobs/{claim['id']}"):
                shown = await http.get(f"/api/queue/q/{path}", headers=headers)
                assert '"leased"' in shown.text
                assert '"trace"' in shown.text
                assert "token" not in shown.text
                assert "receipt" not in shown.text
        await api.close()

    asyncio.run(main())


def test_results_that_are_too_large_for_one_request_are_several(token: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with inside(make_api(None, clock), token, clock, keep="1d") as queue:
            await queue.put([NewJob("a") for _ in range(20)])
            claims = await queue.claim("w", 20, 30)
            large = "\N{GRINNING FACE}" * 250_000
            await queue.settle([Settlement.done(claim, large) for claim in claims])
            assert (await queue.stats()).done == 20
            info = await queue.get(claims[-1].job.id)
            assert info is not None
            assert info.result == large

    clock.run(main())


# Lost answers


def test_a_lost_answer_is_asked_for_again(served: Served, token: Path) -> None:
    async def main() -> None:
        with Proxy(served.port) as proxy:
            url = f"http://{HOST}:{proxy.port}"
            async with HttpQueue(url, "lost", token_file=token) as queue:
                await queue.put(NewJob("a", 0))
                proxy.lose_answer(to=b"/put")
                ids = await queue.put([NewJob("a", 1), NewJob("a", 2)])
                assert len(ids) == 2
                assert (await queue.stats()).ready == 3, "put once"
                proxy.lose_answer(to=b"/claim", fate="reset")
                claims = await queue.claim("w", 2, 60)
                assert [claim.job.payload for claim in claims] == [0, 1]
                assert [claim.job.attempt for claim in claims] == [1, 1]
                assert (await queue.stats()).leased == 2, "claimed once"
                proxy.lose_answer(to=b"/settle")
                await queue.settle([Settlement.done(claim) for claim in claims])
                with pytest.raises(LeaseLost):
                    await queue.settle([Settlement.done(claims[0])])
                proxy.lose_answer(to=b"/stats")
                assert (await queue.stats()).ready == 1
                proxy.lose_answer(to=b"/cancel")
                assert await queue.cancel([ids[1]]) == {ids[1]: "cancelled"}, "cancelled once"
                proxy.lose_answer(to=b"/cancel")
                assert await queue.cancel([ids[1]]) == {}, "it is deleted"

    asyncio.run(main())


def test_what_became_of_a_put_is_not_guessed_after_a_restart(tmp_path: Path, token: Path) -> None:
    store = tmp_path / "jobs.db"
    served = Served(lambda: make_app(make_api(store, Clock())))

    async def main() -> None:
        with Proxy(served.port) as proxy:
            async with HttpQueue(f"http://{HOST}:{proxy.port}", token_file=token) as queue:
                await queue.put(NewJob("a", 0))
                await asyncio.to_thread(served.stop)
                served.start()  # another controller at the same place
                proxy.lose_answer(to=b"/put")
                with pytest.raises(StoreUnavailable, match="closed the connection before"):
                    await queue.put(NewJob("a", 1))
                assert (await queue.stats()).ready == 2

    try:
        asyncio.run(main())
    finally:
        served.stop()


def test_a_held_claim_whose_client_is_gone_claims_nothing(served: Served, token: Path) -> None:
    async def main() -> None:
        async with HttpQueue(served.url, "held", token_file=token) as queue:
            with Proxy(served.port) as proxy:
                url = f"http://{HOST}:{proxy.port}"
                async with HttpQueue(url, "held", token_file=token) as other:
                    held = asyncio.ensure_future(other.claim("gone", 1, 60, 15))
                    await happens(lambda: proxy.counts.requests > 0)
                    proxy.hold()  # half-open: it cannot say that it is gone
                    held.cancel()
                    proxy.cut()
                    proxy.release()
                    await asyncio.wait([held])
            await queue.put(NewJob("a"))
            [claim] = await queue.claim("w", 1, 60, 10)
            assert claim.job.attempt == 1

    asyncio.run(main())


# Workers and hints


async def happens(so: Callable[[], bool]) -> None:
    """Wait for what another thread or process does."""
    async with asyncio.timeout(20):
        while not so():
            await asyncio.sleep(0.01)  # real time: a server is at work


async def at_rest(seen: Seen) -> None:
    """Wait until a worker found nothing, though it would have heard of anything."""
    await happens(lambda: bool(seen.of(HintsProven)))
    await happens(lambda: [poll.found for poll in seen.of(PollFinished)][-1:] == [0])


def test_a_worker_over_http_is_woken_by_a_put_elsewhere(served: Served, token: Path) -> None:
    async def main() -> None:
        seen = Seen()
        done = asyncio.Event()
        queue = HttpQueue(served.url, "work", token_file=token)
        worker = Worker(queue, events=seen.events)

        @worker.handle("mail")
        async def mail(job: Job) -> None:
            if job.payload == 99:
                done.set()

        chosen = options(polling=Adaptive("50ms", "60s"))
        async with HttpQueue(served.url, "work", token_file=token) as other:
            async with working(worker, chosen):
                async with asyncio.timeout(20):
                    await at_rest(seen)
                    await other.put([NewJob("mail", n) for n in range(100)])
                    await done.wait()
            stats = await other.stats()
            assert (stats.ready, stats.leased) == (0, 0)
        await queue.close()

    asyncio.run(main())


def test_nginx_without_upgrades_costs_hints_and_nothing_else(
    served: Served, token: Path, servers: Servers
) -> None:
    nginx = servers.begin(Nginx(servers, served.port, upgrades=False, idle=30), {})

    async def main() -> None:
        seen = Seen()
        done = asyncio.Event()
        queue = HttpQueue(nginx.url, "blocked", token_file=token)
        worker = Worker(queue, events=seen.events)

        @worker.handle("mail")
        async def mail(job: Job) -> None:
            done.set()

        async with HttpQueue(nginx.url, "blocked", token_file=token) as other:
            async with working(worker, options(polling=Adaptive("50ms", "500ms"))):
                async with asyncio.timeout(20):
                    await happens(lambda: bool(seen.of(HintsLost)))
                    await other.put(NewJob("mail"))
                    await done.wait()
                assert "Upgrade" in seen.of(HintsLost)[0].advice
                assert queue.hints().proven_at is None
        await queue.close()

    asyncio.run(main())
    nginx.close()


def test_a_token_that_holds_no_longer_ends_a_worker_with_what_to_do(
    served: Served, token: Path
) -> None:
    write_private(token, "nobodys")

    async def main() -> None:
        queue = HttpQueue(served.url, "mail", token_file=token)
        worker = Worker(queue)

        @worker.handle("mail")
        async def mail(job: Job) -> None: ...

        with pytest.raises(StoreError) as error:
            async with asyncio.timeout(20):
                await worker.run(options())
        assert type(error.value) is StoreError, "as from any other queue"
        said = str(error.value)
        assert "answered 401" in said
        assert "The token of the queue 'mail' is not valid" in said
        assert "token_file" in said
        assert "nobodys" not in said
        await queue.close()

    asyncio.run(main())


def test_hints_that_are_refused_are_no_fault_of_a_proxy(served: Served, token: Path) -> None:
    write_private(token, "nobodys")

    async def main() -> None:
        async with HttpQueue(served.url, "mail", token_file=token) as queue:
            line = queue._channel._transport
            with pytest.raises(RequestRefused) as refused:
                await line.listen(lambda _: None, lambda: None)
            assert "token of the queue 'mail'" in refused.value.advice
            assert "nginx" not in refused.value.advice
            closed = queue.advice_on(RequestRefused("no", 403, "queue_not_open"))
            assert closed is not None
            assert "controller.queues" in closed
            assert queue.advice_on(RequestRefused("no", 404, "")) is None, "it may be a proxy's"

    asyncio.run(main())


def test_curl_will_do(served: Served) -> None:
    headers = {"Authorization": "Bearer admin"}
    with httpx.Client(base_url=f"{served.url}/api/queue/plain", headers=headers) as http:
        assert http.post("/put", json={"jobs": [{"kind": "a"}]}).json()["fresh"] == 1
        [claim] = http.post("/claim", json={"worker": "me"}).json()["claims"]
        settled = {**claim, "action": "done"}
        assert http.post("/settle", json={"settlements": [settled]}).json() == {"lost": []}
        lost = http.post("/settle", json={"settlements": [settled]}).json()
        assert lost == {"lost": [claim["id"]]}
        about = http.get(f"{served.url}/api/queue/plain").json()
        assert about["capabilities"]["keys"] is True
        assert json.loads(http.get("/stats").text)["ready"] == 0


def test_it_is_opened_by_its_url(served: Served, token: Path) -> None:
    async def main() -> None:
        async with pollwise.open(f"{served.url}?queue=opened&token_file={token}") as queue:
            await queue.put(NewJob("a", {"é": "☃"}))
            [claim] = await queue.claim("w", 1, 30)
            assert claim.job.payload == {"é": "☃"}

    asyncio.run(main())


# Several controllers


def test_hints_go_from_one_controller_to_another(postgres: Postgres, token: Path) -> None:
    dsn = migrated(postgres.dsn())
    name = f"bench-{uuid.uuid4().hex}"

    def app() -> Starlette:
        api = QueueApi(lambda queue, keep: PostgresQueue(dsn, queue, keep=keep), authorise, Clock())
        return make_app(api)

    async def main(here: str, there: str) -> None:
        seen, done = Seen(), asyncio.Event()
        queue = HttpQueue(here, name, token_file=token)
        worker = Worker(queue, events=seen.events)

        @worker.handle("mail")
        async def mail(job: Job) -> None:
            done.set()

        async with HttpQueue(there, name, token_file=token) as other:
            async with working(worker, options(polling=Adaptive("50ms", "60s"))):
                async with asyncio.timeout(30):
                    await happens(lambda: queue.hints().proven_at is not None)
                    for put in (other, PostgresQueue(dsn, name)):
                        await at_rest(seen)
                        done.clear()
                        await put.put(NewJob("mail"))
                        began = Clock().now()
                        await done.wait()
                        assert Clock().now() - began < 5, (
                            "a hint ended the pause long before max_interval"
                        )
                    await put.close()
        await queue.close()

    with Served(app) as one, Served(app) as two:
        asyncio.run(main(one.url, two.url))


def test_a_stop_does_not_wait_for_what_is_held(token: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        api = make_api(None, clock)
        async with inside(api, token, clock) as queue:
            held = asyncio.ensure_future(queue.claim("w", 1, 60, 15))
            await clock.sleep(1)
            socket = await queue.dial()
            api.stop_waiting()
            await clock.sleep(0.1)
            with pytest.raises(StoreUnavailable):
                while True:
                    await socket.receive()
            held.cancel()
            await asyncio.wait([held])
            assert clock.now() < 5
            await socket.close()
        await api.close()

    clock.run(main())


def test_every_route_wants_a_token() -> None:
    async def main() -> None:
        api = make_api(None, Clock())
        app = make_app(api)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://x"
        ) as http:
            for route in api.routes():
                path = getattr(route, "path", "").replace("{name}", "q")
                path = path.replace("{job_id:path}", "1")
                if isinstance(route, Route):
                    for method in route.methods or ():
                        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "x"}):
                            answer = await http.request(method, path, headers=headers)
                            assert answer.status_code == 401, f"{method} {path}"
                else:
                    with pytest.raises(StoreUnavailable, match="4401"):
                        await dial_inside(app, path, "x")
        await api.close()

    asyncio.run(main())


def test_a_worker_over_http_mentions_kinds_without_a_handler(
    served: Served, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unhandled, "READY_FOR", 0.0)

    async def main() -> None:
        seen = Seen()
        queue = HttpQueue(served.url, "unhandled", token_file=token)
        worker = Worker(queue, events=seen.events)
        worker.handle("mail")(print)
        await queue.put(NewJob("unknown"))
        async with working(worker, options()):
            await happens(lambda: bool(seen.of(KindUnhandled)))
        assert [(e.kind, e.job) for e in seen.of(KindUnhandled)] == [("unknown", "")]
        await queue.close()

    asyncio.run(main())


def test_a_put_token_cannot_forge_messages_but_its_own_hints_are_proven(
    served: Served, tmp_path: Path
) -> None:
    """It may hint at jobs. To take part in who polls, and broadcasts, are not for it."""
    put = write_private(tmp_path / "put", "put")
    work = write_private(tmp_path / "worker", "worker")

    async def main() -> None:
        async with (
            HttpQueue(served.url, "forged", token_file=work) as worker,
            HttpQueue(served.url, "forged", token_file=put) as putter,
        ):
            heard: list[str] = []
            worker.hints().listen(heard.append)
            sleeper = Hint(None)
            worker.hints().join(sleeper)
            worker.hints().asleep(sleeper)
            putter.hints().listen(lambda kind: None)
            await happens(lambda: worker._channel._proven_at is not None)
            await happens(lambda: putter._channel._proven_at is not None)
            forged = message_of("check", "forged", "n", None)
            for message in (forged, message_of("broadcast", "forged", "cancelled")):
                await putter.say(message)
            socket = await putter.dial()
            for message in (forged, message_of("broadcast", "forged", "cancelled")):
                await socket.send(message)
            await putter.put([NewJob("a")])
            assert await sleeper.wait(60)  # the hint arrives, after the other messages
            await socket.close()
            assert heard == []
            assert set(worker.hints()._others) == set()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_answers_are_bounded_by_bytes_and_the_rest_is_asked_for(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "ENDINGS_BYTES_MAX", 100_000)
    monkeypatch.setattr(views, "PAGE_BYTES_MAX", 50_000)
    clock = Clock()

    async def main() -> None:
        api = make_api(None, clock)
        async with inside(api, token, clock) as queue:
            put = await queue.put([NewJob("a", n) for n in range(60)])
            claims = await queue.claim("w", 60, 30)
            settled = [Settlement.done(c, "x" * 10_000, keep="1h") for c in claims[:30]]
            settled += [Settlement.dead(c, "y" * 3000) for c in claims[30:]]
            await queue.settle(settled)
            answers: list[int] = []
            call = queue._http.call

            async def measured(*given: Any, **named: Any) -> Any:
                answer = await call(*given, **named)
                answers.append(len(answer.content))
                return answer

            monkeypatch.setattr(queue._http, "call", measured)
            endings = await queue.endings(put)
            assert sorted(endings) == sorted(put)
            assert len(answers) > 1
            assert max(answers) < 350_000
            answers.clear()
            dead = await queue.jobs("dead", limit=1000)
            assert len(dead) == 30
            assert len(answers) > 1
            assert max(answers) < 60_000
        await api.close()

    asyncio.run(main())
