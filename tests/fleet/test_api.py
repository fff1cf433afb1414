"""The HTTP API of a fleet: its answers, its orders, and authorisation."""

from __future__ import annotations

import asyncio
import itertools
import stat
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount

from pollwise.controller.security.auth import Auth, fleet_tokens
from pollwise.controller.security.tokens import Tokens
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.controller.state.values import SCOPES
from pollwise.errors import ConfigError, ProbeRefused, StoreUnavailable
from pollwise.fleet import Fleet, Reading, Target
from pollwise.fleet.api import BODY_MAX, Bearer, Scope, application, served
from pollwise.fleet.control import CHECK_EVERY, Control, note
from pollwise.fleet.stores.postgres.store import TABLES, PostgresFleetStore
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import FleetOrdered, FleetSettingsChanged
from pollwise.settings import Settings, load
from pollwise.storage.postgres.schema import script
from tests.fleet.world import PACED, Watch, fleet_for, running
from tests.support.kit import Seen
from tests.support.servers import Postgres

fleets = (f"api {number}" for number in itertools.count())
NEVER = ("last_success_at", "last_error_at", "last_error", "polled_at", "changed_at", "staleness")


def loader(stored: Mapping[str, Any], where: str) -> Settings:
    return load(None, {}, stored=stored, stored_in=where)


class Desk:
    """A client of a fleet's API, with its token."""

    def __init__(self, client: httpx.AsyncClient, token: str) -> None:
        self._client = client
        self.token = token

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **more: Any
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        return await self._client.request(method, path, json=body, headers=headers, **more)

    async def good(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def bad(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, str]:
        answer = await self.ask(method, path, body, **more)
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "what_to_do"}
        return answer.status_code, f"{error['message']}. {error['what_to_do']}"


@asynccontextmanager
async def desk(control: Control, folder: Path) -> AsyncIterator[Desk]:
    bearer, token = Bearer.from_file(folder / "token")
    assert token is not None
    transport = httpx.ASGITransport(served(control, bearer))
    async with httpx.AsyncClient(transport=transport, base_url="http://fleet") as client:
        yield Desk(client, token)


def in_virtual_time(main: Callable[[VirtualClock, Watch], Any]) -> None:
    clock, watch = VirtualClock(), Watch()
    clock.run(main(clock, watch))
    assert not watch.wrong


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_state_has_all_figures_and_null_for_never(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        facts: Any = {"ms": 1.5, "odd": float("inf"), "thing": object()}
        fleet.add(
            Target("good", watch.probe(lambda _: Reading("x", facts=facts)), "10s"),
            Target("gone/away?", watch.probe(lambda _: ProbeRefused("no such page")), **PACED),
            Target("late", watch.probe(), "10h"),
            Target("shy", watch.probe(lambda _: OSError("refused")), "10s", group="g"),
        )
        fleet.pause("late")
        async with running(fleet), desk(Control(fleet), folder) as client:
            await clock.advance(60)
            health = await client.good("GET", "/api/fleet/state")
            every = {each["name"]: each for each in health["target_list"]}
            assert (health["targets"], health["due"], health["dead_targets"]) == (
                4, 0, ["gone/away?"]
            )  # fmt: skip
            assert health["breakers"] == {"closed": 2, "open": 2, "half-open": 0}
            assert health["stalest"] == "good"
            assert 0 <= health["staleness"] <= 10
            assert every["good"]["last_success_at"] == pytest.approx(clock.epoch(), abs=10)
            assert every["good"]["last_error_at"] is None
            assert every["good"]["facts"]["odd"] is None
            assert every["gone/away?"]["last_success_at"] is None
            assert every["gone/away?"]["last_error"] == "no such page"
            assert {every["late"][key] for key in NEVER} == {None}
            assert health["next"] is None
            # A page, and a choice.
            page = await client.good("GET", "/api/fleet/state?limit=2&after=gone/away%3f")
            assert [each["name"] for each in page["target_list"]] == ["good", "late"]
            page = await client.good("GET", "/api/fleet/state?limit=1")
            assert page["next"] == "gone/away?"
            dead = await client.good("GET", "/api/fleet/state?state=dead")
            assert [each["name"] for each in dead["target_list"]] == ["gone/away?"]
            group = await client.good("GET", "/api/fleet/state?group=g")
            assert [each["name"] for each in group["target_list"]] == ["shy"]
            one = await client.good("GET", "/api/fleet/targets/gone/away%3F")
            assert one["state"] == "dead"
            # However broken targets are, the process lives.
            alive = await client.ask("GET", "/livez", token="none")
            assert (alive.status_code, alive.json()) == (200, {"status": "ok"})

    in_virtual_time(main)


def test_the_last_error_is_shown_with_its_time_after_a_recovery(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        answers = iter([OSError("once")])
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe(lambda _: next(answers, Reading("x"))), "10s"))
        async with running(fleet), desk(Control(fleet), folder) as client:
            await clock.advance(60)
            one = await client.good("GET", "/api/fleet/targets/a")
            assert (one["state"], one["failures"]) == ("closed", 0)
            assert one["last_error"] == "OSError: once"
            assert one["last_error_at"] < one["last_success_at"]

    in_virtual_time(main)


def test_orders_of_other_processes_are_pending_until_they_are_carried_out(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(folder / "fleet.db", clock=clock)
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("a", watch.probe(), "10s"), Target("b", watch.probe(), "10s"))
        async with running(fleet):
            await clock.advance(30)
            control = Control(fleet)  # too late for its chore, so orders wait
            await store.order("pause", ["a"], "cli")
            async with desk(control, folder) as client:
                health = await client.good("GET", "/api/fleet/state")
                assert health["pending"] == 1
                assert [each["pending"] for each in health["target_list"]] == [["pause"], []]
                assert (await client.good("GET", "/api/fleet/targets/a"))["pending"] == ["pause"]
                await control.check_store()
                found = await client.good("GET", "/api/fleet/targets/a")
                assert (found["pending"], found["paused"], found["plan"]) == ([], True, "paused")
                await clock.advance(0.1)  # saved at once: a command sees it, and can resume it
                assert [each.paused for each in await store.load(["a"])] == [True]
        await store.close()

    in_virtual_time(main)


def test_orders_are_carried_out(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        broken = {"on": True}
        fleet = fleet_for(clock)

        def answer(_: Target) -> object:
            return ProbeRefused("no") if broken["on"] else Reading("x")

        fleet.add(Target("a b", watch.probe(answer), **PACED), Target("c", watch.probe(), "1h"))
        async with running(fleet), desk(Control(fleet), folder) as client:
            await clock.advance(30)
            assert fleet.target("a b").state == "dead"
            broken["on"] = False
            assert await client.good("POST", "/api/fleet/targets/a%20b/retry") == {
                "order": "retry", "targets": ["a b"], "pending": []
            }  # fmt: skip
            await clock.advance(1)
            assert fleet.target("a b").state == "closed"
            broken["on"] = True
            await clock.advance(30)
            broken["on"] = False
            await client.good("POST", "/api/fleet/targets/a b/close-breaker")
            assert fleet.target("a b").failures == 0
            await client.good("POST", "/api/fleet/pause", {"targets": ["a b", "c"]})
            assert fleet.target("c").paused
            await client.good("POST", "/api/fleet/targets/c/resume")
            assert not fleet.target("c").paused
            polls = len(watch.at["c"])
            await client.good("POST", "/api/fleet/targets/c/poll-now")
            await clock.advance(0.1)
            assert len(watch.at["c"]) == polls + 1

    in_virtual_time(main)


def test_orders_and_changes_are_in_the_audit_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(folder / "fleet.db")
        fleet = fleet_for(clock, seen, store=store)
        fleet.add(*(Target(name, watch.probe(), "10s") for name in "ab"))
        control = Control(fleet, loader)
        await control.start()
        async with running(fleet), desk(control, folder) as client:
            await client.good("POST", "/api/fleet/targets/a/pause")
            await client.good("POST", "/api/fleet/resume", {"targets": ["a", "b"]})
            await client.good("PATCH", "/api/fleet/polling", {"enabled": False})
            await client.bad("PATCH", "/api/fleet/polling", {"enabled": "perhaps"})
            await client.bad("POST", "/api/fleet/targets/nobody/pause")
            await client.ask("POST", "/api/fleet/targets/a/pause", token="wrong")
            page = await client.good("GET", "/api/fleet/audit?limit=2")
            assert [each["action"] for each in page["entries"]] == [
                "polling.change", "target.resume"
            ]  # fmt: skip
            rest = await client.good("GET", f"/api/fleet/audit?before={page['next']}")
            [entry] = rest["entries"]
            assert entry.pop("at") == pytest.approx(time.time(), abs=60)
            assert entry == {
                "id": 1, "who": "token", "action": "target.pause", "what": "'a'", "detail": "",
                "address": "127.0.0.1",
            }  # fmt: skip
            assert rest["next"] is None
        await store.close()

    seen = Seen()
    caplog.set_level("INFO", "pollwise.runtime.audit")
    in_virtual_time(main)
    lines = [each for each in caplog.records if each.name == "pollwise.runtime.audit"]
    assert [each.getMessage() for each in lines] == [
        "token target.pause 'a' - from 127.0.0.1",
        "token target.resume 'a', 'b' 2 targets from 127.0.0.1",
        "token polling.change all targets enabled = False from 127.0.0.1",
    ]
    assert vars(lines[0])["fields"] == {
        "who": "token", "did": "target.pause", "what": "'a'", "detail": "", "address": "127.0.0.1",
    }  # fmt: skip
    told = {each.by for each in seen.of(FleetOrdered)}
    assert told == {each.by for each in seen.of(FleetSettingsChanged)}
    assert told == {"api: token from 127.0.0.1"}


def test_without_a_store_audit_entries_are_only_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe(), "10s"))
        async with running(fleet), desk(Control(fleet), folder) as client:
            await client.good("POST", "/api/fleet/targets/a/pause")
            assert await client.good("GET", "/api/fleet/audit") == {"entries": [], "next": None}

    caplog.set_level("INFO", "pollwise.runtime.audit")
    in_virtual_time(main)
    assert "token target.pause 'a' - from 127.0.0.1" in caplog.messages


def test_an_order_is_carried_out_even_if_the_audit_fails(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(entry: AuditEntry) -> None:
        raise StoreUnavailable("the disk is full")

    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(folder / "fleet.db")
        store.audit = broken  # type: ignore[method-assign, misc]
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("a", watch.probe(), "10s"))
        async with running(fleet), desk(Control(fleet), folder) as client:
            await client.good("POST", "/api/fleet/targets/a/pause")
            assert fleet.target("a").paused
        await store.close()

    in_virtual_time(main)
    assert "an audit entry is only in this log, because the store failed: the disk is full" in (
        caplog.messages
    )


def test_an_audit_line_cannot_be_forged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pollwise.runtime.audit")
    asyncio.run(note(None, "me", "polling.change", "group 'a\nb\x1b[31m'", "x" * 1000))
    [line] = caplog.messages
    assert line.startswith(r"me polling.change group 'a\nb\x1b[31m' x")
    assert len(line) < 600


def test_settings_are_patched_shown_and_kept(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(folder / "fleet.db")
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("a", watch.probe(), group="g"))
        control = Control(fleet, loader)
        await control.start()
        async with running(fleet), desk(control, folder) as client:
            await client.good("PATCH", "/api/fleet/polling", {"group": "g", "enabled": False})
            told = await client.good("PATCH", "/api/fleet/polling", {"base_interval": "20s"})
            rows = {each["key"]: each for each in told["settings"]}
            assert rows["fleet.groups.g.polling.enabled"]["value"] == "false"
            assert "fleet.db" in rows["fleet.polling.base_interval"]["from"]
            assert await store.settings() == {
                "fleet.groups.g.polling.enabled": False, "fleet.polling.base_interval": "20s"
            }  # fmt: skip
            assert fleet.target("a").interval == 20.0
            await client.good("PATCH", "/api/fleet/polling", {"group": "g", "enabled": None})
            assert "fleet.groups.g.polling.enabled" not in await store.settings()
            assert await client.good("GET", "/api/fleet/polling") == {
                "kept_in": f"sqlite:///{folder / 'fleet.db'}", "settings": control.polling()
            }  # fmt: skip
        await store.close()

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("GET", "/api/fleet/state?limit=x", None, 400, "whole number from 0"),
        ("GET", "/api/fleet/state?limit=-1", None, 400, "whole number from 0"),
        ("GET", "/api/fleet/state?limit=99999999999999999999", None, 400, "whole number"),
        ("GET", "/api/fleet/state?state=tired", None, 400, "one of closed"),
        ("GET", "/api/fleet/state?stat=dead", None, 400, "are after, group, limit, state"),
        ("GET", "/api/fleet/targets/a?full=1", None, 400, "it has none"),
        ("GET", "/api/fleet/polling?group=g", None, 400, "it has none"),
        ("POST", "/api/fleet/targets/a/pause?for=1h", None, 400, "it has none"),
        ("GET", "/api/fleet/audit?who=me", None, 400, "are before, limit"),
        ("GET", "/api/fleet/audit?limit=x", None, 400, "whole number from 0"),
        ("GET", "/api/fleet/audit?before=x", None, 400, "before must be the id of an entry"),
        ("GET", "/api/fleet/audit?before=9999999999999999", None, 400, "before must be"),
        ("GET", "/api/fleet/targets/nobody", None, 404, "no target 'nobody'"),
        ("POST", "/api/fleet/targets/nobody/pause", None, 404, "no target 'nobody'"),
        ("POST", "/api/fleet/targets/a/explode", None, 404, "Choose one of retry, close-breaker"),
        (
            "POST",
            "/api/fleet/explode",
            {"targets": ["a"]},
            404,
            "Choose one of retry, close-breaker",
        ),
        ("POST", "/api/fleet/pause", {"targets": "a"}, 400, "targets must be a list of names"),
        ("POST", "/api/fleet/pause", {"targets": [1]}, 400, "targets must be a list of names"),
        ("POST", "/api/fleet/pause", {"targets": ["a", "b"]}, 404, "no target 'b'"),
        ("POST", "/api/fleet/pause", [], 400, "not a JSON object"),
        ("PATCH", "/api/fleet/polling", {}, 400, "Give one or more of "),
        ("PATCH", "/api/fleet/polling", {"group": 1, "enabled": True}, 400, "group = 1 must be"),
        ("PATCH", "/api/fleet/polling", {"group": "x", "enabled": True}, 400, "no target is in a"),
        ("PATCH", "/api/fleet/polling", {"enabled": "perhaps"}, 400, "must be true or false"),
        ("PATCH", "/api/fleet/polling", {"min_interval": "1h"}, 400, "is above"),
        ("PATCH", "/api/fleet/polling", {"ceiling": 1}, 400, "cannot be changed"),
        ("DELETE", "/api/fleet/polling", None, 405, "Method Not Allowed"),
        ("GET", "/api/fleet/nowhere", None, 405, "Method Not Allowed"),
        ("GET", "/nowhere", None, 404, "Not Found"),
    ],
)
def test_bad_requests_get_a_reason(
    folder: Path, method: str, path: str, body: Any, status: int, said: str
) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe(), "10s"))
        control = Control(fleet, loader)
        await control.start()
        async with running(fleet), desk(control, folder) as client:
            found = await client.bad(method, path, body)
            assert found[0] == status
            assert said in found[1]
            assert not fleet.target("a").paused

    in_virtual_time(main)


def test_a_stranger_learns_no_path_and_a_405_names_the_methods(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        async with running(fleet), desk(Control(fleet), folder) as client:
            for path in ("/api/fleet", "/api/fleet/state/", "/api/fleet/nowhere", "/nowhere"):
                answer = await client.ask("GET", path, token="none")
                assert answer.status_code == 401, path
                assert not {"allow", "location"} & set(answer.headers)
            slash = await client.ask("GET", "/api/fleet/state/")
            assert slash.status_code in (404, 405)
            for method, path, allow in (
                ("DELETE", "/api/fleet/polling", "GET, HEAD, POST, PATCH"),
                ("DELETE", "/livez", "GET, HEAD"),
            ):
                answer = await client.ask(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, allow)

    in_virtual_time(main)


def test_a_fleet_is_ready_while_it_polls(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe(), "10s"))
        async with desk(Control(fleet), folder) as client:
            answers = [
                await client.ask("GET", path, token="none") for path in ("/livez", "/readyz")
            ]
            assert [each.status_code for each in answers] == [200, 503]
            async with running(fleet):
                answer = await client.ask("GET", "/readyz", token="none")
                assert (answer.status_code, answer.json()) == (200, {"status": "ok"})

    in_virtual_time(main)


def test_a_fleet_that_cannot_save_is_not_ready_until_it_can(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(folder / "fleet.db", clock=clock)
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("a", watch.probe(), "10s"))

        async def save(*_: object) -> NoReturn:
            raise StoreUnavailable("cannot reach postgresql://me:hunter2@db/fleet")

        async with running(fleet), desk(Control(fleet), folder) as client:

            async def ready() -> tuple[int, Any]:
                answer = await client.ask("GET", "/readyz", token="none")
                return answer.status_code, answer.json()

            with monkeypatch.context() as broken:
                broken.setattr(store, "save", save)
                await clock.advance(60)
                status, said = await ready()
                assert (status, said["status"]) == (503, "not ready")
                assert said["reasons"][0].startswith("could not save state ")
                assert "db/fleet" in str(said)
                assert "hunter2" not in str(said)
            await clock.advance(60)
            assert await ready() == (200, {"status": "ok"})
        await store.close()

    in_virtual_time(main)


def test_an_invalid_or_too_large_body_is_refused(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        async with running(fleet), desk(Control(fleet), folder) as client:
            path = "/api/fleet/pause"
            for content in (b"{", b"\xff", b"[" * 100_000):
                assert (await client.bad("POST", path, content=content))[0] == 400
            assert (await client.bad("POST", path, content=b"x" * (BODY_MAX + 1)))[0] == 413

    in_virtual_time(main)


@pytest.mark.parametrize("given", ["", "wrong", "Bearer", "é", "x" * 10_000])
def test_every_route_needs_the_token(folder: Path, given: str) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe(), "10s"))
        async with running(fleet), desk(Control(fleet, loader), folder) as client:
            for header in (given, f"Bearer {given}", f"Basic {client.token}"):
                headers = {b"Authorization": header.encode()}
                for method, path in (
                    ("GET", "/api/fleet/state"),
                    ("GET", "/api/fleet/polling"),
                    ("GET", "/api/fleet/audit"),
                    ("GET", "/api/fleet/targets/a"),
                    ("POST", "/api/fleet/targets/a/pause"),
                    ("POST", "/api/fleet/pause"),
                    ("PATCH", "/api/fleet/polling"),
                ):
                    answer = await client._client.request(method, path, headers=headers)
                    assert answer.status_code == 401
                    assert answer.headers["www-authenticate"] == "Bearer"
            assert not fleet.target("a").paused

    in_virtual_time(main)


def test_a_controllers_tokens_let_in_by_their_scopes(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        state = SqliteState.temporary(clock)
        tokens, auth = Tokens(state), Auth(state)
        await state.ping()
        secret: dict[str, str] = {}
        made = {}
        for scope in SCOPES:
            made[scope], secret[scope] = await tokens.make(scope, scope)
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe(), "10s"))
        mounted = served(Control(fleet), fleet_tokens(auth))
        transport = httpx.ASGITransport(mounted)
        async with running(fleet), httpx.AsyncClient(transport=transport) as client:

            async def tried(token: str) -> list[int]:
                headers = {"Authorization": f"Bearer {token}"}
                looked = await client.get("http://f/api/fleet/state", headers=headers)
                paused = await client.post("http://f/api/fleet/targets/a/pause", headers=headers)
                return [looked.status_code, paused.status_code]

            assert await tried("pollwise_guessed") == [401, 401]
            assert await tried(secret["worker"]) == [403, 403]
            assert await tried(secret["put"]) == [403, 403]
            assert await tried(secret["read"]) == [200, 403]
            assert not fleet.target("a").paused
            headers = {"Authorization": f"Bearer {secret['read']}"}
            answer = await client.post("http://f/api/fleet/targets/a/pause", headers=headers)
            assert "pollwise serve token create" in answer.json()["error"]["what_to_do"]
            assert await tried(secret["operate"]) == [200, 202]
            assert await tried(secret["admin"]) == [200, 202]
            assert fleet.target("a").paused
            answer = await client.get("http://f/api/fleet/state")
            assert answer.json()["error"]["code"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"
            await tokens.revoke(made["read"].id)
            auth.forget()
            assert await tried(secret["read"]) == [401, 401]
        await state.close()

    in_virtual_time(main)


def test_another_function_can_authorise(folder: Path) -> None:
    async def only_read(request: Request, scope: Scope) -> None:
        if scope != "read":
            raise HTTPException(403, "you may only look")

    async def main(clock: VirtualClock, watch: Watch) -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe(), "10s"))
        mounted = Starlette(routes=[Mount("/api/fleet", application(Control(fleet), only_read))])
        transport = httpx.ASGITransport(mounted)
        async with running(fleet), httpx.AsyncClient(transport=transport) as client:
            assert (await client.get("http://f/api/fleet/state")).status_code == 200
            answer = await client.post("http://f/api/fleet/targets/a/pause")
            told = {"code": "forbidden", "message": "you may only look", "what_to_do": ""}
            assert (answer.status_code, answer.json()) == (403, {"error": told})

    in_virtual_time(main)


def test_the_token_is_kept_as_a_hash_that_only_its_owner_reads(folder: Path) -> None:
    path = folder / "token"
    _, token = Bearer.from_file(path)
    assert token is not None
    assert len(token) >= 40
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    _, again = Bearer.from_file(path)
    assert again is None
    path.write_text("my secret")
    with pytest.raises(ConfigError, match="does not contain the hash"):
        Bearer.from_file(path)
    with pytest.raises(ConfigError, match="cannot be written"):
        Bearer.from_file(folder / "nowhere" / "token")


def test_a_store_that_cannot_be_asked_is_503_and_the_process_lives(folder: Path) -> None:
    async def main(clock: VirtualClock, watch: Watch) -> None:
        store = SqliteFleetStore(folder / "fleet.db")

        async def broken(changes: Mapping[str, Any]) -> None:
            raise StoreUnavailable("the disk is full")

        store.keep_settings = broken  # type: ignore[method-assign, misc]
        fleet = fleet_for(clock, store=store)
        control = Control(fleet, loader)
        await control.start()
        async with running(fleet), desk(control, folder) as client:
            found = await client.bad("PATCH", "/api/fleet/polling", {"enabled": False})
            assert found[0] == 503
            assert found[1].startswith("the disk is full. Try again")
            assert (await client.ask("GET", "/livez")).status_code == 200
            assert (await client.ask("GET", "/api/fleet/state")).status_code == 200
        await store.close()

    in_virtual_time(main)


def test_any_node_shows_all_targets_and_takes_orders_for_them(
    folder: Path, postgres: Postgres
) -> None:
    postgres.execute(script("pollwise", TABLES))

    async def main(clock: VirtualClock, watch: Watch) -> None:
        name = next(fleets)
        both: list[Fleet] = []
        for number in range(2):
            store = PostgresFleetStore(postgres.dsn(), name, clock=clock)
            fleet = fleet_for(clock, store=store, node=f"n{number}")
            fleet.add(*(Target(f"t{n}", watch.probe(), "10s") for n in range(6)))
            both.append(fleet)
        controls = [Control(fleet) for fleet in both]
        async with AsyncExitStack() as stack:
            for fleet in both:
                await stack.enter_async_context(running(fleet))
            client = await stack.enter_async_context(desk(controls[0], folder))
            await clock.advance(60)
            health = await client.good("GET", "/api/fleet/state")
            assert (health["node"], health["held"], health["targets"]) == ("n0", 3, 6)
            assert health["never"] == 0
            assert all(each["last_success_at"] for each in health["target_list"])
            names = [each["name"] for each in health["target_list"]]
            await client.good("POST", "/api/fleet/pause", {"targets": names})
            await clock.advance(CHECK_EVERY + 1.5)
            health = await client.good("GET", "/api/fleet/state")
            assert health["paused"] == 6
        for fleet in both:
            assert fleet.store is not None
            await fleet.store.close()

    in_virtual_time(main)
