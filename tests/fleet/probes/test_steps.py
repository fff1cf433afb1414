"""Steps: logging in and then looking, and servers that try to make harm of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import pytest

from pollwise.errors import ConfigError, ProbeError, ProbeTimeout
from pollwise.fleet.file import FleetFileError, read_text
from pollwise.fleet.probes import make_probe
from pollwise.fleet.probes.http.variables import filled, filled_url
from pollwise.fleet.targets import Target
from tests.fleet.probes.kit import HttpAnswer, Request, page, polled, really, web

FORM = '<form><input type=hidden name=csrf value="t0ken/+&amp;="></form>'


class Shop:
    """A site with a login form: a cookie of the form, then one of the session."""

    def __init__(self) -> None:
        self.orders: Any = {"open": 7}

    def __call__(self, request: Request) -> bytes:
        cookies = request.headers.get("cookie", "")
        path, _, query = request.path.partition("?")
        if path == "/login" and request.method == "GET":
            return page(FORM, set_cookie="form=1; Path=/login")
        if path == "/login":
            sent = parse_qs(request.body.decode())
            right = sent == {"user": ["watcher"], "password": ["hunter2"], "csrf": ["t0ken/+&="]}
            if not right or "form=1" not in cookies:
                return page("wrong password", "401 Unauthorized")
            return page("", "302 Found", location="/home", set_cookie="session=s3cret; HttpOnly")
        if path == "/api/token":
            user = json.loads(request.body)["user"]
            return page(json.dumps({"auth": {"token": f"of {user}"}, "next": "/api/orders?n=1"}))
        if path == "/api/orders":
            assert request.headers["authorization"] == "Bearer of watcher"
            return page(json.dumps({**self.orders, "query": query}))
        if "session=s3cret" not in cookies or "form=1" in cookies:
            return page("log in first", "403 Forbidden")
        return page("<h1>Welcome</h1>" if path == "/home" else json.dumps(self.orders))


def login(url: str, **last: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": "form",
            "url": f"{url}/login",
            "extract": {"csrf": {"selector": "input[name=csrf]", "attribute": "value"}},
        },
        {
            "name": "log in",
            "method": "post",
            "url": f"{url}/login",
            "form": {"user": "watcher", "password": "hunter2", "csrf": "{csrf}"},
            "selector": "h1",
        },
        {"name": "orders", "url": f"{url}/orders", **last},
    ]


def test_logging_in_by_a_form_and_then_looking() -> None:
    async def main() -> None:
        async with web(Shop()) as server:
            url = server.url("")
            found = await polled("steps", steps=login(url, json="open"))
            assert (found.value, found.facts["status"], found.facts["steps"]) == ("7", 200, 3)
            assert found.facts["slowest"] in ("form", "log in", "orders")
            assert found.summary.startswith("200, open = 7, ")
            assert "s3cret" not in repr(found.kept())
            # Without a value of its own, the status counts.
            assert (await polled("steps", steps=login(url))).value == "200"
            # Each poll begins without cookies: nothing is left of the login.
            with pytest.raises(ProbeError, match=r"step 'orders': GET .* 403 Forbidden"):
                await polled("steps", steps=login(url)[2:])

    really(main)


def test_a_token_from_json_is_used_in_headers_and_urls() -> None:
    async def main() -> None:
        async with web(Shop()) as server:
            steps = [
                {
                    "url": server.url("/api/token"),
                    "method": "post",
                    "json_body": {"user": "watcher", "n": [1, "{{user}}"]},
                    "extract": {
                        "token": {"json": "auth.token"},
                        "next": {"regex": '"next": "/([^"]*)"'},
                        "length": {"header": "content-length"},
                    },
                },
                {
                    "url": server.url("/{next}"),
                    "headers": {"Authorization": "Bearer {token}"},
                    "json": "query",
                },
            ]
            assert (await polled("steps", steps=steps)).value == "n=1"
            assert json.loads(server.requests[0].body)["n"] == [1, "{user}"]
            assert server.requests[0].headers["content-type"] == "application/json"

    really(main)


def test_values_are_encoded_where_they_stand() -> None:
    values = {"v": "a b/../c?x=1&y#z", "t": "+/="}
    assert filled_url("https://h/{v}", values) == "https://h/a%20b/../c?x=1&y%23z"
    assert filled_url("https://h/p?a={v}&t={t}", values) == (
        "https://h/p?a=a%20b%2F..%2Fc%3Fx%3D1%26y%23z&t=%2B%2F%3D"
    )
    assert filled('{"a": {"b": "{t}"}} {no} {{t}}', values) == '{"a": {"b": "+/="}} {no} {t}'


def failing(answer: bytes | Callable[[Request], HttpAnswer], **step: Any) -> ProbeError:
    """How a poll fails whose second step meets this answer."""

    async def main() -> ProbeError:
        async with web(Shop()) as shop, web(answer) as server:
            first = {"url": shop.url("/login"), "name": "first"}
            steps = [first, {"url": server.url("/hunter2/x"), "name": "second", **step}]
            with pytest.raises(ProbeError) as raised:
                await polled("steps", steps=steps)
            return raised.value

    error = really(main)
    assert str(error).startswith("step 'second': ")
    return error


async def endless(writer: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"400\r\n" + b"." * 1024 + b"\r\n")
        await writer.drain()


async def hang(writer: Any) -> None:
    await asyncio.Event().wait()


async def cut(writer: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "step", "said"),
    [
        (page("no", "500 Oops"), {}, "was answered with 500"),
        (page("no", "404 Gone"), {}, "was answered with 404"),
        (page("x" * 5000), {"limit": 1000}, "more than 1,000 bytes"),
        (page("", "302 Found", location="/again"), {}, "redirected more than 5 times"),
        (page("", "302 Found", location="file:///etc/passwd"), {}, "not http(s)"),
        (page("{}"), {"extract": {"t": {"json": "a.b"}}}, "nothing at a.b"),
        (page("x"), {"extract": {"t": {"regex": "y"}}}, "does not match 'y'"),
        (page("x"), {"extract": {"t": {"header": "location"}}}, "nothing for the variable t"),
        (page("x"), {"extract": {"t": {"cookie": "c"}}}, "nothing for the variable t"),
        (page("<p>x"), {"extract": {"t": {"selector": "a"}}}, "nothing for the variable t"),
        (page("x" * 9000), {"extract": {"t": {"regex": "x+"}}}, "more than 8,192 characters"),
        (page("<p>x"), {"selector": "h1"}, "no element matches 'h1'"),
        (lambda _: cut, {}, "cut off"),
        (lambda _: endless, {}, "more than 1,048,576 bytes"),
        (lambda _: hang, {"timeout": "300ms"}, "no answer within 300ms"),
        (b"nonsense\r\n\r\n", {}, "not HTTP"),
    ],
    ids=range(16),
)  # fmt: skip
def test_the_failing_step_is_named(
    answer: bytes | Callable[[Request], Callable[[Any], Awaitable[None]]],
    step: dict[str, Any],
    said: str,
) -> None:
    assert said in str(failing(answer, **step))


def test_all_steps_share_the_timeout_and_the_one_that_waits_is_named() -> None:
    async def main() -> str:
        async with web(lambda r: hang if r.path == "/b" else page("x")) as server:
            steps = [{"url": server.url("/a")}, {"url": server.url("/b")}]
            with pytest.raises(ProbeTimeout) as raised:
                await polled("steps", timeout=1.0, steps=steps)
            return str(raised.value)

    assert really(main).startswith("step 'step 2': no answer within ")


def test_no_message_has_a_secret() -> None:
    async def main() -> str:
        answers = {"/a": page("T0PSECRET")}
        async with web(lambda r: answers.get(r.path, page("", "403 No"))) as server:
            steps = [
                {"url": server.url("/a"), "extract": {"key": {"regex": ".+"}}},
                {"url": server.url("/b/{key}?q={key}"), "headers": {"x-key": "{key}"}},
            ]
            with pytest.raises(ProbeError) as raised:
                await polled("steps", steps=steps)
            assert server.requests[1].path == "/b/T0PSECRET?q=T0PSECRET"
            return str(raised.value)

    said = really(main)
    assert "T0PSECRET" not in said
    assert "/b/{key}" in said


def test_a_server_cannot_flood_or_break_the_cookies() -> None:
    flood = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n" + b"".join(
        b"set-cookie: c%d=1\r\n" % n for n in range(200)
    )
    assert "more than 100 cookies" in str(failing(flood + b"\r\n"))
    odd = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nset-cookie: a=\xff\x01\r\nset-cookie: b=2\r\n"

    async def main() -> None:
        async with web(lambda _: odd + b"\r\nok") as server:
            again = [{"url": server.url(), "name": f"{n}"} for n in range(2)]
            again[1]["headers"] = {"Cookie": "own=1"}  # type: ignore[assignment]
            await polled("steps", steps=again)
            assert server.requests[1].headers["cookie"] == "own=1; b=2"

    really(main)


def test_cookies_and_variables_do_not_go_to_another_host() -> None:
    """A redirect to another host gets neither the cookies nor the headers of the first."""

    async def main() -> None:
        async with web(page("seen")) as other:
            elsewhere = other.url("/").replace("127.0.0.1", "localhost")
            async with web(
                lambda r: (
                    page("", "302 Found", location=elsewhere)
                    if r.path == "/go"
                    else page("x", set_cookie="session=s3cret")
                )
            ) as server:
                steps = [
                    {"url": server.url("/")},
                    {"url": server.url("/go"), "headers": {"Authorization": "Bearer x"}},
                ]
                await polled("steps", steps=steps)
            assert "session=s3cret" in server.requests[1].headers["cookie"]
            assert not {"cookie", "authorization"} & set(other.requests[0].headers)

    really(main)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (None, "steps is missing"),
        ([], "steps must be a list of tables"),
        (["x"], "steps (step 1) is not a table"),
        ([{}], "steps (step 1): url is missing"),
        ([{"url": "https://h/", "metod": "post"}], "metod is not an option; did you mean method?"),
        ([{"url": "https://h/{tokn}"}], "uses {tokn}, which no earlier step extracts"),
        ([{"url": "https://h/", "form": {"a": "b"}}], "form is not sent with GET; give a method"),
        ([{"url": "https://h/", "name": "a"}] * 2, "name = 'a' is the name of an earlier step"),
        ([{"url": "https://h/"}] * 21, "steps has 21 steps; the limit is 20"),
        ([{"url": "https://{h}/"}], "url has a variable in its host"),
        ([{"url": "https://h/", "extract": {"a": {}}}], "extract of a: needs one of json, regex"),
        ([{"url": "https://h/", "extract": {"a b": {"json": "x"}}}], "is not a name of letters"),
        ([{"url": "https://h/", "extract": {"a": {"jsn": "x", "json": "x"}}}], "of a: jsn is not"),
        ([{"url": "https://h/", "extract": "x"}], "extract must be a table of tables"),
        ([{"url": "https://h/", "json": "a", "regex": "b"}], "contradict each other"),
        ([{"url": "https://h/", "method": "post", "body": "a", "form": {}}], "contradict"),
    ],
    ids=range(16),
)  # fmt: skip
def test_wrong_steps_are_refused(steps: Any, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_probe(Target("t", "steps", options={} if steps is None else {"steps": steps}))
    assert said in str(raised.value)


def test_a_misspelt_variable_gets_the_nearest_but_a_password_may_have_braces() -> None:
    text = """
[[target]]
name = "log in"
type = "steps"

[[target.steps]]
url = "https://shop.example/"
extract = { token = { header = "x-token" } }

[[target.steps]]
url = "https://shop.example/"
method = "post"
form = { password = "${SECRET}", token = "{tokken}" }
"""
    with pytest.raises(FleetFileError) as raised:
        read_text(text, environment={"SECRET": "pa{ss}word"})
    assert "steps (step 2): form uses {tokken}" in str(raised.value)
    assert "did you mean 'token'?" in str(raised.value)
    assert "ss}" not in str(raised.value)
    sound = text.replace("tokken", "token")
    (target,) = read_text(sound, environment={"SECRET": "pa{ss}word"}).targets
    assert target.type == "steps"
