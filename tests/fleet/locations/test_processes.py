"""Three nodes, each a process with a way of its own to the target, on one Postgres."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pollwise.fleet.stores.postgres.store import TABLES
from pollwise.storage.postgres.schema import script
from tests.support.daemons import HOST, wait_until
from tests.support.forked import Forked
from tests.support.proxy import Proxy
from tests.support.servers import Postgres

PLACES = ("paris", "tokyo", "lima")
FILE = """
[[target]]
name = "shop"
type = "tcp"
address = "127.0.0.1:${SHOP_PORT}"
interval = "300ms"
timeout = "1s"
detect_within = "3s"
confirm_from = 2
"""


class Shop:
    """The target: accepts connections while it is open."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


class Nodes:
    """The nodes, their proxies, and what the store says about the target."""

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        self._postgres = postgres
        self._fleet = folder.name
        self.shop = Shop()
        self.ways = {place: Proxy(self.shop.port) for place in PLACES}
        self._processes: list[Forked] = []
        self._file = folder / "fleet.toml"
        self._file.write_text(FILE)

        url = postgres.dsn()
        self._store = f"{url}{'&' if '?' in url else '?'}fleet={self._fleet}"

    def start(self, place: str) -> None:
        words = [
            "-m", "pollwise", "fleet", "run", "--file", self._file, "--store", self._store,
            "--location", place, "--node", place, "--set", "fleet.lease=3s",
            "--log-level", "critical",
        ]  # fmt: skip
        self._processes.append(Forked(words, env=self._env(place), out=False, err=False))

    def target(self) -> dict[str, Any]:
        rows = self._postgres.execute(
            "SELECT t.more, t.failures, t.state, t.polled_at, n.node FROM pollwise.fleet_targets t "
            "LEFT JOIN pollwise.fleet_nodes n ON n.id = t.holder WHERE t.fleet = %s",
            (self._fleet,),
        )
        if not rows:
            return {"down": False, "holder": None, "seen": {}, "polled_at": None}
        [(more, failures, state, polled_at, holder)] = rows
        found = json.loads(more)
        results = found.get("locations", {}).get("results", [])
        return {
            "down": bool(found.get("down")),
            "failures": failures,
            "state": state,
            "polled_at": polled_at,
            "holder": holder,
            "seen": {each["location"]: each["ok"] for each in results},
        }

    def status(self) -> str:
        """What the command says about the target and the nodes."""
        said = ""
        for names in ([], ["shop"]):
            words = ["-m", "pollwise", "fleet", "status", *names, "--store", self._store]
            command = Forked([*words, "--file", self._file], env=self._env("paris"))
            said += "".join(command.communicate(30))
            command.close()
        return " ".join(said.split())

    def _env(self, place: str) -> dict[str, str]:
        return {**os.environ, "SHOP_PORT": str(self.ways[place].port)}

    def until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        wait_until(lambda: holds(self.target()), what, within=60)

    def polls(self, count: int) -> list[dict[str, Any]]:
        """What the store says after each of so many saves."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            last = found[-1]["polled_at"] if found else None
            self.until(lambda now, last=last: now["polled_at"] != last, "another poll")  # type: ignore[misc]
            found.append(self.target())
        return found

    def close(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait(10)
        for way in self.ways.values():
            way.close()
        self.shop.close()


@pytest.fixture
def nodes(postgres: Postgres, tmp_path: Path) -> Iterator[Nodes]:
    postgres.execute(script("pollwise", TABLES))
    nodes = Nodes(postgres, tmp_path)
    yield nodes
    nodes.close()


def test_a_cut_off_node_raises_no_alarm_and_a_real_outage_is_confirmed(
    nodes: Nodes, postgres: Postgres
) -> None:
    nodes.start("paris")
    nodes.until(lambda now: now["seen"].get("paris") is True, "a first poll from paris")
    nodes.start("tokyo")
    nodes.start("lima")
    wait_until(
        lambda: postgres.execute("SELECT count(*) FROM pollwise.fleet_nodes WHERE fleet = %s",
                                 (nodes._fleet,)) == [(3,)],
        "three nodes",
    )  # fmt: skip
    assert nodes.target()["holder"] == "paris"
    # A node that holds nothing is cut off: nothing happens.
    nodes.ways["tokyo"].refuse()
    assert all(each["failures"] == 0 for each in nodes.polls(2))
    # The holder is cut off: the others see the target, so it is not down.
    nodes.ways["tokyo"].accept()
    nodes.ways["paris"].refuse()
    wanted = {"paris": False, "tokyo": True, "lima": True}
    nodes.until(lambda now: now["seen"] == wanted, "the answers of the others")
    for each in nodes.polls(3):
        assert not each["down"]
        assert each["state"] == "confirming"
    said = nodes.status()
    assert "paris at paris (1)" in said
    assert re.search(r"from paris .{10,60} failed: .*connection refused", said)
    assert re.search(r"from tokyo .{10,60} succeeded", said)
    # The target itself is gone: it is down, although the holder sees nothing new.
    nodes.ways["tokyo"].refuse()
    nodes.ways["lima"].refuse()
    nodes.until(lambda now: now["down"], "a confirmed outage")
    # It is back, though not for the holder; then for the holder too.
    nodes.ways["tokyo"].accept()
    nodes.ways["lima"].accept()
    nodes.until(lambda now: not now["down"], "its end, as seen from elsewhere")
    nodes.ways["paris"].accept()
    nodes.until(lambda now: now["failures"] == 0, "a success of the holder")
    # An outage that all see.
    for way in nodes.ways.values():
        way.refuse()
    nodes.until(lambda now: now["down"], "a real outage")
    assert nodes.target()["seen"]["paris"] is False
