"""Patterns of probes: linear in the content, outside the event loop, with a deadline."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pollwise.alerts.patterns import INLINE_MAX, SHORT_MAX, Pattern, as_utf8, compile_pattern
from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet import Fleet, FleetRunOptions, ProbeContext, Target
from pollwise.fleet.probes import make_probe
from tests.fleet.probes.kit import page, polled, really, web

#: Content for which Python's `re` needs more time than there is.
HOSTILE = b"a" * 10_000_000 + b"!"


def found(text: str, content: bytes | str, encoding: str = "utf-8") -> str | None:
    return asyncio.run(compile_pattern(text).search(content, encoding))


@pytest.mark.parametrize(
    ("text", "content", "value"),
    [
        (r"price: (\d+)", "the\nprice: 42 €", "42"),
        (r"^b.$", "a1\nb2\nc3", "b2"),
        ("(x)?y", "y", ""),
        ("(?i)STRASSE|straße", "Straße", "Straße"),
        (r"\pL+", "1 größer", "größer"),
        ("€$", "5 €".encode(), "€"),
        (".", b"\xff", "�"),
        (".", "\ud800", "?"),
        ("z", "a", None),
    ],
)
def test_a_group_or_the_match_is_found(text: str, content: bytes | str, value: str | None) -> None:
    assert found(text, content) == value
    if isinstance(content, str):
        assert compile_pattern(text).matches(content) is (value is not None)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "latin-1", "utf-16", "utf-32", "shift_jis", "cp1255"]
)
def test_any_encoding_becomes_valid_utf8(encoding: str) -> None:
    text = "abc 123 " * 20_000
    assert as_utf8(text.encode(encoding), encoding) == text.encode()
    for raw in (b"", b"\xff", b"\xff\xfea", b"\x80\x00\xd8" * 50_000):
        as_utf8(raw, encoding).decode("utf-8")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("(?=a)b", "lookahead and lookbehind are not possible"),
        ("(?<!a)b", "lookahead and lookbehind are not possible"),
        (r"(a)\1", "a reference to an earlier group is not possible"),
        ("(?P<a>x)(?P=a)", "a reference to an earlier group is not possible"),
        (r"a\Z", r"write \z"),
        (r"\u20ac", r"\x{20AC}"),
        ("a++", "leave it out"),
        ("(?x)a", "the flags are i, m, s and U"),
        ("a{,5}", "write {,5} as {0,5}"),
        ("a{1001}", "1,000 times at most"),
        (r"(\pL{100}){10}", "repeat less"),
        (r"\pL{80}", "the limit is 10,000"),
        ("a" * 5000, "has 5,000 characters"),
        ("(", "missing )"),
        ("\ud800", "not valid"),
    ],
)
def test_what_cannot_be_matched_in_linear_time_is_refused(text: str, advice: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compile_pattern(text)
    assert advice in str(raised.value)


def test_a_refused_pattern_names_its_option() -> None:
    with pytest.raises(ConfigError, match=r"target 't': regex = '\(\?=a\)' is not a regular"):
        make_probe(Target("t", "command", options={"run": "true", "regex": "(?=a)"}))


def test_a_condition_searches_a_short_text() -> None:
    pattern = compile_pattern("^(a+)+$")
    assert not pattern.matches("a" * 50 + "!")
    assert pattern.matches("a" * SHORT_MAX + "!")  # what follows is not searched
    assert compile_pattern("a")._program is compile_pattern("a")._program


@pytest.mark.parametrize("regex", ["^(a+)+$", "^(a+)+!$"])
def test_a_hostile_page_does_not_freeze_the_fleet(regex: str) -> None:
    """While a page of 10 MB is searched, other targets are polled."""
    matches = regex != "^(a+)+$"

    async def main() -> None:
        polls = 0

        async def count(_: Target, __: ProbeContext) -> str:
            nonlocal polls
            polls += 1
            return "same"

        async with web(page(HOSTILE)) as server:
            fleet = Fleet(FleetRunOptions(seed=1, grace="1s", signals=False))
            options = {"url": server.url(), "regex": regex, "limit": "16MiB"}
            fleet.add(Target("page", "http", "1h", timeout="4m", options=options))
            fleet.add(Target("other", count, "1ms"))
            running = asyncio.ensure_future(fleet.run())
            while (state := fleet.target("page")).succeeded_at is None and not state.error:
                await asyncio.sleep(0)
            fleet.stop()
            await running
            assert (state.error is None) is matches, state.error
            assert polls >= 10

    really(main)


def test_other_work_goes_on_during_a_search() -> None:
    async def main() -> int:
        search = asyncio.ensure_future(compile_pattern("^(a+)+!$").search(HOSTILE))
        turns = 0
        while not search.done():
            await asyncio.sleep(0)
            turns += 1
        value = await search
        assert value is not None
        assert len(value) == len(HOSTILE) - 1  # the last repetition of the group
        return turns

    assert really(main) >= 10


class Endless:
    """A program whose search ends when it is told to."""

    groups = 0

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def search(self, raw: bytes) -> list[bytes]:
        self.begun.set()
        assert self.end.wait(240)
        return [raw[:1]]


def test_a_search_has_a_deadline_and_delays_only_its_own_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = Endless()
    content = b"x" * (INLINE_MAX + 1)

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr("pollwise.alerts.patterns._compiled", lambda _: (endless, 1))
            pattern = Pattern("x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pattern.search(content)
        # Cancelled before it began or while it runs: both are over for the caller.
        while not endless.begun.is_set():
            with pytest.raises((TimeoutError, ProbeError)):
                async with asyncio.timeout(0.05):
                    await pattern.search(content)
        with pytest.raises(ProbeError, match="still running after its deadline"):
            await pattern.search(content)
        assert await compile_pattern("x").search(content) == "x"
        endless.end.set()
        while pattern._late is not None:
            await asyncio.sleep(0)
        assert await pattern.search(content) == "x"

    really(main)


@pytest.mark.parametrize("charset", ["bz2", "idna", "punycode", "utf-7", "unicode_escape", "no"])
def test_a_server_cannot_choose_a_dangerous_encoding(charset: str) -> None:
    async def main() -> None:
        answer = page("+AGE- größer", content_type=f"text/html; charset={charset}")
        async with web(answer) as server:
            assert (await polled("http", url=server.url(), regex=r"\+.*")).value == "+AGE- größer"

    really(main)
