"""`--health-port` and systemd of real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.console import PATIENCE, Command, good
from tests.support.daemons import wait_until
from tests.support.private import write_private
from tests.support.servers import OwnRedis

SHOP = """
import asyncio, os, pathlib
import pollwise

worker = pollwise.Worker(os.environ.get("SHOP_QUEUE", "sqlite:///jobs.db"))
outbox = pollwise.Outbox("sqlite:///shop.db")

@worker.handle("slow")
async def slow(job):
    print("begun", {"NOTIFY_SOCKET", "_POLLWISE_HEALTH"} & set(os.environ), flush=True)
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)

@outbox.handle("*")
async def publish(record): ...
"""
STOPPING = {"status": "not ready", "reasons": ["stopping"]}


@pytest.fixture(autouse=True)
def shop(folder: Path) -> Path:
    (folder / "shop.py").write_text(SHOP)
    return folder


def answer(url: str, path: str = "readyz") -> Any:
    try:
        with urllib.request.urlopen(f"{url}/{path}", timeout=PATIENCE) as found:
            return json.load(found)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return json.load(error)


def url_of(command: Command) -> str:
    return command.err.until(r"health on (http://127\.0\.0\.1:\d+)/readyz")[1]


def until_ready(url: str) -> None:
    wait_until(lambda: answer(url) == {"status": "ok"}, f"{url} to be ready", PATIENCE)


def test_a_worker_whose_store_goes_away_and_comes_back(own_redis: OwnRedis) -> None:
    server = own_redis(requirepass="hunter2")
    words = ("worker", "shop:worker", "--health-port", 0, "--strategy", "fixed")
    with Command(*words, env={"SHOP_QUEUE": server.url()}) as worker:
        url = url_of(worker)
        until_ready(url)
        server.kill()
        worker.err.until("poll_failed .*failures=3")
        told = answer(url)
        assert told["status"] == "not ready"
        assert "polls failed" in told["reasons"][0]
        assert "hunter2" not in str(told)
        assert answer(url, "livez") == {"status": "ok"}, "a restart would not help"
        server.start()
        until_ready(url)


def test_a_worker_that_stops_is_not_ready_while_it_finishes(folder: Path) -> None:
    good("queue", "put", "sqlite:///jobs.db", "slow")
    with Command("worker", "shop:worker", "--health-port", 0) as worker:
        url = url_of(worker)
        worker.out.until(r"begun set\(\)")
        until_ready(url)
        worker.send(signal.SIGTERM)
        worker.err.until("worker_stopping")
        assert answer(url) == STOPPING
        assert answer(url, "livez") == {"status": "ok"}
        (folder / "go").touch()
        assert worker.end() == 0


def test_several_processes_answer_on_one_port_and_tell_systemd(folder: Path) -> None:
    good("queue", "put", "sqlite:///jobs.db", "slow")
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(str(folder / "notify"))
    systemd.settimeout(PATIENCE)

    def heard(line: str) -> None:
        while line not in systemd.recv(65536).decode().splitlines():
            pass

    environment = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "2000000"}
    words = ("worker", "shop:worker", "--health-port", 0, "--processes", 2)
    with Command(*words, env=environment) as supervisor:
        url = url_of(supervisor)
        heard("READY=1")
        assert answer(url) == answer(url, "livez") == {"status": "ok"}
        heard("WATCHDOG=1")
        supervisor.out.until(r"begun set\(\)")  # handlers see neither socket
        children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text()
        victim = int(children.split()[0])
        os.kill(victim, signal.SIGSTOP)  # as one whose threads are all stuck
        wait_until(
            lambda: "process" in str(answer(url, "livez").get("reasons")), "a silent process", 120
        )
        os.kill(victim, signal.SIGKILL)
        heard("STATUS=polling")  # replaced
        until_ready(url)
        supervisor.send(signal.SIGTERM)
        heard("STOPPING=1")
        assert answer(url) == STOPPING
        (folder / "go").touch()
        assert supervisor.end() == 0
    systemd.close()


def test_a_relay() -> None:
    good("outbox", "migrate", "sqlite:///shop.db")
    with Command("outbox", "run", "shop:outbox", "--health-port", 0) as relay:
        until_ready(url_of(relay))
        assert relay.stopped() == 0


def test_a_fleet_with_a_broken_target_is_ready(folder: Path) -> None:
    target = '[[target]]\nname = "broken"\ntype = "command"\nrun = ["false"]\ninterval = "1s"\n'
    (folder / "fleet.toml").write_text(target)
    with Command("fleet", "run", "--health-port", 0) as fleet:
        url = url_of(fleet)
        fleet.err.until("broken")  # its failure, in the log
        assert answer(url) == {"status": "ok"}
        assert fleet.stopped() == 0


def test_an_agent_without_its_controller(folder: Path) -> None:
    write_private(folder / "token", "pw_w_" + "a" * 40)
    words = ("--controller", "http://127.0.0.1:9", "--token-file", "token", "--folder", "work")
    with Command("agent", *words, "--health-port", 0, "--", "true") as agent:
        url = url_of(agent)
        agent.err.until("poll_failed .*failures=3")
        told = answer(url)
        assert "polls failed" in told["reasons"][0]
        assert "aaaa" not in str(told)
        assert answer(url, "livez") == {"status": "ok"}
