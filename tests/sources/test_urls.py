"""Sources by URL: the same as by their classes; and what is wrong with a URL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.redact import without_hidden
from pollwise.sources import (
    Bucket,
    Feed,
    Folder,
    HttpJson,
    ImapFolder,
    MemoryCursors,
    RedisStream,
    Source,
    open_source,
)

#: A secret with characters that mean something in a URL.
SECRET = "hunter2@/?#&%41=+"


def parts(source: Source[Any]) -> dict[str, Any]:
    """All that was given to a source, and what it made of it."""
    found: dict[str, Any] = {"class": type(source)}
    for inner in (None, "_fetch", "_connections.address", "_store"):
        holder: Any = source
        for name in (inner or "").split(".") if inner else ():
            holder = getattr(holder, name, None)
        for name in dir(holder):
            value = getattr(holder, name) if not name.startswith("__") else None
            if isinstance(value, (str, int, float, Path, dict, tuple, bytes)) and name != "_owned":
                found[f"{inner}.{name}"] = value
    return found


@pytest.mark.parametrize(
    ("url", "same"),
    [
        (
            "folder:///in%20box?pattern=*.csv&quiet=3s&watch=false&limit=7&name=mine",
            lambda: Folder("in box", "*.csv", quiet="3s", watch=False, limit=7, name="mine"),
        ),
        ("folder:////var/in", lambda: Folder("/var/in")),
        ("file:///var/in?ordered=true", lambda: Bucket("file:///var/in", ordered=True)),
        (
            "s3://uploads/a/b?region=eu-west-1&endpoint=http://h:9&ordered=true&limit=3",
            lambda: Bucket(
                "s3://uploads/a/b?region=eu-west-1&endpoint=http://h:9", ordered=True, limit=3
            ),
        ),
        (
            "rediss://app:${SECRET}@cache:1/2?stream=a%20b&timeout=2s",
            lambda: RedisStream(
                "rediss://app:hunter2%40%2F%3F%23%26%2541%3D%2B@cache:1/2", "a b", timeout="2s"
            ),
        ),
        (
            "imaps://me%40x.example:${SECRET}@[::1]:1993/Work%2FTodo?idle=false&body_max=9&limit=3",
            lambda: ImapFolder(
                "[::1]:1993", "me@x.example", SECRET, "Work/Todo", idle=False, body_max=9, limit=3
            ),
        ),
        (
            "imap://me:pw@mail.example",
            lambda: ImapFolder("mail.example", "me", "pw", tls=False, starttls=True),
        ),
        (
            "imap://me:pw@mail.example?starttls=false",
            lambda: ImapFolder("mail.example", "me", "pw", tls=False),
        ),
        (
            "feed+https://h.example/news?tag=a#limit=5&timeout=3s&redirects=0&max_bytes=99",
            lambda: Feed(
                "https://h.example/news?tag=a", limit=5, timeout="3s", redirects=0, max_bytes=99
            ),
        ),
        (
            "json+http://h.example/v1?state=open#items=data&field=at&since=after&token=${SECRET}",
            lambda: HttpJson(
                "http://h.example/v1?state=open", items="data", field="at", since="after",
                headers={"authorization": f"Bearer {SECRET}"},
            ),
        ),
    ],
)  # fmt: skip
def test_a_url_opens_what_its_class_opens(
    url: str, same: Callable[[], Source[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setattr("pollwise.runtime.redact._hidden", set())
    clock, cursors = VirtualClock(), MemoryCursors()

    async def main() -> None:
        by_url, by_class = open_source(url, clock=clock, cursor=cursors), same()
        assert parts(by_url) == parts(by_class)
        assert by_url.clock is clock
        assert by_url._cursors is cursors
        assert SECRET not in repr(by_url)
        assert (without_hidden(f"a {SECRET}") == "a ***") == ("SECRET" in url)
        await by_url.close()
        await by_class.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:hunter2@cache/0", "source URLs of redis need stream, as in redis://cache/0?str"),
        ("redis://:hunter2@cache/0?steam=x", "source URLs of redis do not take 'steam'; did you"),
        ("redis://:hunter2@cache/0?stream=x#y", "follow a '?'; write a '#' in a name as %23"),
        ("folder:///in?limit=many", "limit = 'many' is not a whole number"),
        ("folder:///in?watch=no", "watch = 'no' must be true or false"),
        ("folder:///in?limit=1&limit=2", "limit is given twice in a source URL of folder"),
        ("folder:///in?limit=0", "limit = 0 must be a whole number from 1 to"),
        ("folder://in", "must be folder:///relative/path or folder:////absolute/path"),
        ("folder:///", "must be folder:///relative/path"),
        ("folder:inbox", "expected the URL of a source, such as redis://cache/0?stream=orders"),
        ("sqlite:///shop.db", "sqlite:// needs a query and a watermark, which a URL cannot"),
        ("postgresql://a:hunter2@db/shop", "use pollwise.sources.SqlRows in Python"),
        ("https://hunter2@h.example/T0KEN", "https:// does not say what the server answers with"),
        ("json+https://h.example#limit=3", "limit is not an option of HttpJson"),
        ("json+https://a:hunter2@h.example/#since=x", "since needs field"),
        ("json+https://h.example/#link=true&page=p", "link and page contradict each other"),
        ("feed+https://h.example/?x=1#tokn=hunter2", "do not take 'tokn'; did you mean 'token'?"),
        ("feed+ftp://h.example", "no source has the scheme 'feed+ftp'; did you mean 'feed+http'?"),
        ("imaps://me@mail.example/INBOX", "'imaps://user:${MAIL_PASSWORD}@host/INBOX' in single q"),
        ("imaps://me:hunter2@mail.example:nan", "ImapFolder: address"),
        ("imaps://me:${POLLWISE_NOT_SET}@h", "uses ${POLLWISE_NOT_SET}, and this environment"),
        ("s3://me:hunter2@bucket/x", "holds credentials"),
        ("redis://[hunter2", "expected the URL of a source"),
        (7, "expected the URL of a source"),
    ],
)
def test_a_wrong_url_is_refused_without_its_secrets(url: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_source(url)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "T0KEN" not in str(caught.value)


def test_queries_have_cursors_of_their_own_whatever_their_secrets() -> None:
    def name(query: str) -> str:
        return open_source(f"json+https://h.example/v1?{query}").name

    assert len({name(""), name("state=open"), name("state=closed")}) == 3
    assert name("api_key=hunter2&state=open") == name("api_key=hunter3&state=open")
    assert "open" not in name("state=open")
