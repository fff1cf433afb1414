"""Ready-made probes in a real fleet."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pollwise.alerts.channels.base import Channel
from pollwise.alerts.channels.webhook import WebhookChannel
from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import Notice
from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet import Fleet, FleetRunOptions, ProbeContext, Target
from pollwise.fleet.probes.kept import _loops
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import NoticeFailed, TargetDead, TargetFailed
from tests.fleet.probes.kit import Request, page, really, web
from tests.fleet.world import fleet_for
from tests.support.daemons import HOST, wait_until
from tests.support.kit import Seen, virtually
from tests.support.proxy import Proxy


def real_fleet(seen: Seen, *channels: Channel) -> Fleet:
    options = FleetRunOptions(seed=1, grace="1s", signals=False)
    alerts = Alerts(channels, to=[each.name for each in channels])
    return Fleet(options, events=seen.events, alerts=alerts)


def test_a_changed_page_is_sent_by_webhook_and_no_connection_is_left() -> None:
    seen = Seen()

    async def main() -> None:
        told = asyncio.Event()
        pages = iter(["a", "a", "b"])

        def hooked(request: Request) -> bytes:
            told.set()
            return page("", "204 X")

        async with web(hooked) as hook, web(lambda _: page(next(pages, "b"))) as server:
            fleet = real_fleet(seen, WebhookChannel("hook", hook.url()))
            options = {"url": server.url(), "regex": "."}
            fleet.add(Target("p", "http", "10ms", alerts=["changed"], options=options))
            running = asyncio.ensure_future(fleet.run())
            await told.wait()
            fleet.stop()
            await running
            assert b'"value":"b"' in hook.requests[0].body
            assert server.connections == 1
        assert fleet.target("p").error is None

    asyncio.run(main())
    assert not seen.of(NoticeFailed, TargetFailed)
    assert not any(kept.things for kept in _loops.values())


def test_a_webhook_that_fails_is_an_event_without_secrets() -> None:
    seen = Seen()

    async def main() -> None:
        done = asyncio.Event()
        seen.events.subscribe(lambda _: done.set(), NoticeFailed)
        numbers = iter(range(1000))
        async with web(page("", "500 X")) as hook:
            url = hook.url("/s3cret?token=t0ken")
            fleet = real_fleet(seen, WebhookChannel("hook", url))
            count: Any = lambda: next(numbers)  # noqa: E731
            fleet.add(Target("n", count, "10ms", alerts=["changed"]))
            running = asyncio.ensure_future(fleet.run())
            await done.wait()
            fleet.stop()
            await running

    really(main)
    (first, *_) = seen.of(NoticeFailed)
    assert "500" in str(first)
    assert "s3cret" not in str(list(seen))
    assert "t0ken" not in str(list(seen))


def test_a_slow_drip_and_a_hanging_command_are_failures_of_their_targets_alone(
    tmp_path: Path,
) -> None:
    seen = Seen()
    note = tmp_path / "pid"
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"

    async def main() -> None:
        failed: set[str] = set()
        both = asyncio.Event()

        def note_failure(event: object) -> None:
            assert isinstance(event, TargetFailed)
            failed.add(event.target)
            if failed >= {"drip", "hang"}:
                both.set()

        seen.events.subscribe(note_failure, TargetFailed)
        async with web(page("x" * 100_000)) as server:
            with Proxy(server.port) as proxy:
                proxy.drip(1, 0.05)
                fleet = real_fleet(seen)
                url = f"http://{HOST}:{proxy.port}/"
                hang = {"run": [sys.executable, "-I", "-c", code, str(note)]}
                fleet.add(
                    Target("drip", "http", "1h", timeout="1s", options={"url": url}),
                    Target("hang", "command", "1h", timeout="1s", options=hang),
                    Target("fine", "http", "50ms", options={"url": server.url()}),
                )
                running = asyncio.ensure_future(fleet.run())
                while fleet.target("fine").succeeded_at is None:
                    await asyncio.sleep(0)
                fleet.poll_now("drip")
                fleet.poll_now("hang")
                await both.wait()
                fleet.stop()
                await running
        assert failed == {"drip", "hang"}

    really(main)
    assert all("no answer within the timeout" in event.error for event in seen.of(TargetFailed))
    pid = note.read_text()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the command")


@pytest.mark.parametrize(
    ("asked", "plan", "gap"),
    [
        (200.0, {"interval": "10s"}, 200.0),
        (999_999_999.0, {"interval": "10s"}, 300.0),
        (999_999_999.0, {"interval": "20m"}, 1200.0),
        (999_999_999.0, {"interval": "10s", "timeout": "5s", "detect_within": "60s"}, 55.0),
    ],
)
def test_retry_after_is_respected_up_to_a_limit(
    asked: float, plan: dict[str, Any], gap: float
) -> None:
    polls: list[float] = []

    async def busy(target: Target, context: ProbeContext) -> str:
        polls.append(asyncio.get_running_loop().time())
        error = ProbeError("429")
        error.retry_after = asked
        raise error

    async def main(clock: VirtualClock) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("t", busy, dead_after=1000, **plan))
        running = asyncio.ensure_future(fleet.run())
        await clock.advance(5000)
        fleet.stop()
        await running

    virtually(main)
    gaps = [after - before for before, after in itertools.pairwise(polls)]
    assert len(gaps) >= 3
    assert gaps[:4] == pytest.approx([gap] * len(gaps[:4]), abs=1)


def test_a_target_that_is_not_found_is_dead_once_confirmed() -> None:
    seen = Seen()

    async def main() -> None:
        dead = asyncio.Event()
        seen.events.subscribe(lambda _: dead.set(), TargetDead)
        async with web(page("", "404 X")) as server:
            fleet = real_fleet(seen)
            pace: Any = dict.fromkeys(("base_interval", "min_interval", "max_interval"), "20ms")
            fleet.add(Target("gone", "http", **pace, options={"url": server.url()}))
            running = asyncio.ensure_future(fleet.run())
            await dead.wait()
            fleet.stop()
            await running
            assert len(server.requests) == 3

    really(main)


def test_plain_functions_are_probes_and_others_are_refused() -> None:
    changes: list[Notice] = []

    async def main(clock: VirtualClock) -> None:
        fleet = fleet_for(clock)
        numbers = iter(range(1000))

        @fleet.probe("numbers", interval="1s")
        def number() -> int:
            return next(numbers)

        fleet.on_change(changes.append)
        running = asyncio.ensure_future(fleet.run())
        await clock.advance(10)
        fleet.stop()
        await running
        three: Any = lambda a, b, c: None  # noqa: E731
        with pytest.raises(ConfigError, match="must take"):
            fleet.add(Target("three", three))
        with pytest.raises(ConfigError, match="did you mean 'http'"):
            fleet.add(Target("x", "htpp"))

    virtually(main)
    assert [change.payload["after"]["value"] for change in changes[:3]] == ["1", "2", "3"]


MISSING = """
import sys
sys.modules["httpx"] = sys.modules["httpcore"] = sys.modules["dns"] = None
sys.modules["cryptography"] = None
from pollwise.errors import MissingExtra
from pollwise.fleet import Fleet, FleetRunOptions, Target
from pollwise.fleet.file import FleetFileError, read_text

Fleet().add(Target("a", "tcp", options={"address": "x:1"}))
for kind, key in (("http", "url"), ("feed", "url"), ("dns", "domain")):
    try:
        Fleet().add(Target("b", kind, options={key: "http://x/"}))
    except MissingExtra as error:
        assert "pip install 'pollwise[fleet]'" in str(error)
    else:
        raise AssertionError(kind)
    try:
        read_text(f'[[target]]\\nname = "a"\\ntype = "{kind}"\\n{key} = "x"\\n')
    except FleetFileError as error:
        assert error.problems[0][0] == 1, error
        assert "pollwise[fleet]" in str(error)
    else:
        raise AssertionError(kind)
try:
    Fleet().add(Target("c", "tcp", options={"address": "x:1", "tls": True}))
except MissingExtra as error:
    assert "pip install 'pollwise[fleet]'" in str(error)
else:
    raise AssertionError("tls")
"""


def test_without_the_extra_a_fleet_says_what_to_install() -> None:
    run = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
