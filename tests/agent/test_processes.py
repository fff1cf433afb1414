"""Real processes: killed agents, killed controllers, cut networks, an nginx that is no help."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.agent.processes import AgentProcess, ServeProcess
from tests.agent.test_commands import lives
from tests.support.daemons import Keeper, wait_until
from tests.support.nginx import Nginx
from tests.support.proxy import Proxy
from tests.support.servers import Postgres, Servers


@pytest.fixture
def keeper(servers: Servers) -> Keeper:
    return servers


def serve(
    keeper: Keeper,
    store: str | None = None,
    beside: ServeProcess | None = None,
    **settings: str,
) -> ServeProcess:
    return keeper.begin(ServeProcess(keeper, store, beside, **settings), {})


def lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def test_a_build_from_end_to_end(keeper: Keeper, tmp_path: Path) -> None:
    controller = serve(keeper)
    token = controller.token("worker")
    script = 'cat "$1" > $POLLWISE_OUT/copy.json; echo \'{"ok": true}\' > $POLLWISE_RESULT'
    with AgentProcess(
        controller.url, token, tmp_path / "a", script, "--capability", "platform=ios"
    ) as agent:
        job = controller.put(payload={"ref": "main"}, requires={"platform": "ios"})
        done = controller.await_state(job, "done")
        assert done["result"] == {"ok": True}
        command_line = Path(f"/proc/{agent.process.pid}/cmdline").read_text()
        assert agent.stop() == 0
        secret = token.read_text().strip()
        assert secret not in agent.log + controller.log() + command_line
        assert controller.ask("GET", "/api/workers")["workers"] == []
    controller.close()


def test_a_killed_agent_leaves_nothing_running_and_its_job_runs_again(
    keeper: Keeper, tmp_path: Path
) -> None:
    controller = serve(keeper, heartbeat_timeout="3s")
    token = controller.token("worker")
    pids = tmp_path / "pids"
    first = f"echo $$ >> {pids}; exec sleep 60"
    with AgentProcess(controller.url, token, tmp_path / "a", first) as agent:
        job = controller.put()
        wait_until(lambda: len(lines(pids)) == 1, "the command runs")
        agent.kill()
    orphan = int(lines(pids)[0])
    wait_until(lambda: not lives(orphan), "its supervisor ends it")
    with AgentProcess(controller.url, token, tmp_path / "a", "echo again"):
        done = controller.await_state(job, "done")
        assert done["attempt"] == 2
    controller.close()


def test_a_killed_controller_is_not_missed(keeper: Keeper, tmp_path: Path) -> None:
    controller = serve(keeper)
    token = controller.token("worker")
    runs, go, over = tmp_path / "runs", tmp_path / "go", tmp_path / "over"
    waits = f"while [ ! -e {go} ]; do sleep 0.05; done"
    script = f"echo $POLLWISE_JOB_ID >> {runs}; {waits}; echo end; touch {over}"
    with AgentProcess(controller.url, token, tmp_path / "a", script) as agent:
        one, two = controller.put(), controller.put()
        wait_until(lambda: len(lines(runs)) == 1, "the command runs")
        controller.kill()
        agent.await_log("poll_failed")
        go.touch()
        wait_until(over.exists, "the command ends, and nobody can be told")
        controller.start()
        for job in (one, two):
            assert controller.await_state(job, "done", within=60)["attempt"] == 1
        assert sorted(lines(runs)) == sorted([one, two]), "each ran once"
        assert agent.log.count("worker_registered") == 1, "it is still who it was"
        assert agent.stop() == 0
    controller.close()


@pytest.mark.soak
def test_a_controller_that_is_away_for_longer_than_the_heartbeat_timeout(
    keeper: Keeper, tmp_path: Path
) -> None:
    controller = serve(keeper, heartbeat_timeout="120s")
    token = controller.token("worker")
    runs, go = tmp_path / "runs", tmp_path / "go"
    script = f"""
echo $POLLWISE_JOB_ID >> {runs}
[ "$POLLWISE_JOB_KIND" = short ] || while [ ! -e {go} ]; do sleep 0.2; done
echo made > $POLLWISE_OUT/file; echo 7 > $POLLWISE_RESULT
"""
    with AgentProcess(controller.url, token, tmp_path / "a", script, "--slots", "2") as agent:
        long = controller.put("long", attempts=1)
        wait_until(lambda: len(lines(runs)) == 1, "the command runs")
        short = controller.put("short")
        wait_until(lambda: len(lines(runs)) == 2, "the command runs")
        controller.kill()
        with AgentProcess(controller.url, token, tmp_path / "b", script) as idle:
            time.sleep(140)  # real time: the outage
            go.touch()
            controller.start()
            for job in (long, short):
                done = controller.await_state(job, "done", within=90)
                assert (done["attempt"], done["result"]) == (1, 7)
            idle.await_log("worker_registered", within=90)
        assert sorted(lines(runs)) == sorted([long, short]), "each ran once"
        assert agent.stop() == 0
    controller.close()


def test_a_network_that_comes_and_goes(keeper: Keeper, tmp_path: Path) -> None:
    controller = serve(keeper)
    token = controller.token("worker")
    runs = tmp_path / "runs"
    script = f"echo $POLLWISE_JOB_ID >> {runs}; echo line; echo made > $POLLWISE_OUT/file"
    with Proxy(controller.port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        with AgentProcess(url, token, tmp_path / "a", script, "--slots", "3"):
            jobs = [controller.put() for _ in range(12)]
            for number, word in enumerate((b"/poll", b"/logs", b"/artefacts", b"/poll", b"/poll")):
                wait_until(lambda n=number: len(lines(runs)) > 2 * n, "it goes on", 60)  # type: ignore[misc]
                proxy.lose_answer(to=word, fate="reset" if number % 2 else "cut")
                proxy.cut(reset=number % 2 == 0)
                proxy.refuse()
                proxy.accept()
            for job in jobs:
                assert controller.await_state(job, "done", within=60)["attempt"] == 1
        assert sorted(lines(runs)) == sorted(jobs), "each ran once"
    controller.close()


def test_sigterm_gives_back_what_takes_too_long(keeper: Keeper, tmp_path: Path) -> None:
    controller = serve(keeper)
    token = controller.token("worker")
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    script = f"trap 'echo x > {ended}; exit 1' TERM; touch {ready}; while :; do sleep 0.05; done"
    with AgentProcess(controller.url, token, tmp_path / "a", script, "--grace", "200ms") as agent:
        job = controller.put()
        wait_until(ready.exists, "the command runs")
        assert agent.stop() == 0
        assert ended.exists(), "the command was asked to end"
    controller.await_state(job, "ready")
    with AgentProcess(controller.url, token, tmp_path / "b", "true"):
        assert controller.await_state(job, "done")["attempt"] == 1
    controller.close()


@pytest.mark.soak
def test_nginx_that_blocks_upgrades_and_then_does_not(keeper: Keeper, tmp_path: Path) -> None:
    controller = serve(keeper, target_pickup="2s", max_interval="2s")
    token = controller.token("worker")
    runs = tmp_path / "runs"
    nginx = keeper.begin(Nginx(keeper, controller.port, upgrades=False), {})
    with AgentProcess(
        nginx.url, token, tmp_path / "a", f"echo $POLLWISE_JOB_ID >> {runs}"
    ) as agent:
        jobs: list[str] = []

        def one() -> float:
            began = time.monotonic()
            jobs.append(controller.put())
            controller.await_state(jobs[-1], "done")
            return time.monotonic() - began

        agent.await_log("hints_lost")
        one()  # by polling
        for turn in (1, 2):
            nginx.reload(upgrades=True)
            agent.await_log("hints_proven", turn, within=60)
            assert min(one() for _ in range(3)) < 1.5, "by push"
            nginx.reload(upgrades=False)
            agent.await_log("hints_lost", turn + 1)
            one()
        assert agent.stop() == 0
    assert sorted(lines(runs)) == sorted(jobs), "each ran once"
    nginx.close()
    controller.close()


@pytest.mark.soak
def test_an_idle_websocket_outlives_the_patience_of_nginx(keeper: Keeper, tmp_path: Path) -> None:
    controller = serve(keeper)
    token = controller.token("worker")
    nginx = keeper.begin(Nginx(keeper, controller.port, idle=30), {})
    with AgentProcess(nginx.url, token, tmp_path / "a", "true") as agent:
        agent.await_log("hints_proven")
        time.sleep(70)  # real time: nginx cuts what is silent for thirty seconds
        assert "hints_lost" not in agent.log
        controller.await_state(controller.put(), "done")
        assert agent.stop() == 0
    nginx.close()
    controller.close()


def test_tls_and_http2_by_nginx(keeper: Keeper, tmp_path: Path) -> None:
    controller = serve(keeper)
    token = controller.token("worker")
    nginx = keeper.begin(Nginx(keeper, controller.port, tls=True), {})
    trust = {"SSL_CERT_FILE": str(nginx.certificate)}
    script = "head -c 300000 /dev/zero > $POLLWISE_OUT/zeros; echo line"
    with AgentProcess(nginx.url, token, tmp_path / "a", script, environ=trust) as agent:
        agent.await_log("hints_proven")
        job = controller.put()
        controller.await_state(job, "done")
        [file] = controller.ask("GET", f"/api/jobs/{job}/artefacts")["artefacts"]
        assert file["size"] == 300_000
        assert agent.stop() == 0
    assert "HTTP/2.0" in (nginx.folder / "access.log").read_text()
    with AgentProcess(nginx.url, token, tmp_path / "b", script) as agent:
        assert agent.process.wait(30) == 2  # a certificate that nobody vouches for
        said = " ".join(agent.log.split())
        assert "has a TLS certificate that is not trusted" in said
        assert "--ca-file" in said
        assert "Traceback" not in said
    trust_it = ("--ca-file", str(nginx.certificate))
    with AgentProcess(nginx.url, token, tmp_path / "c", script, *trust_it) as agent:
        agent.await_log("hints_proven")
        assert agent.stop() == 0
    nginx.close()
    controller.close()


@pytest.mark.soak
def test_two_controllers_behind_nginx_one_killed_again_and_again(
    keeper: Keeper, postgres: Postgres, tmp_path: Path
) -> None:
    store = postgres.create_database(f"farm_{uuid.uuid4().hex[:8]}", owner="postgres")
    files = str(tmp_path / "artefacts")
    one = serve(keeper, store, artefacts=files)
    two = serve(keeper, store, one, artefacts=files)
    token = one.token("worker")
    runs = tmp_path / "runs"
    nginx = keeper.begin(Nginx(keeper, one.port, two.port), {})
    script = (
        f"echo $POLLWISE_JOB_ID >> {runs}; echo line; echo made > $POLLWISE_OUT/file; sleep 0.2"
    )
    with ExitStack() as stack:
        for number in range(3):
            folder = tmp_path / str(number)
            options = ("--slots", "3", "--name", f"agent-{number}")
            stack.enter_context(AgentProcess(nginx.url, token, folder, script, *options))
        jobs: list[str] = []
        for turn in range(4):
            victim, other = (one, two) if turn % 2 == 0 else (two, one)
            jobs.extend(other.put() for _ in range(10))
            wait_until(lambda: len(lines(runs)) > len(jobs) - 8, "they go on", 60)
            victim.kill()
            jobs.extend(other.put() for _ in range(5))
            wait_until(lambda: len(lines(runs)) > len(jobs) - 8, "they go on", 60)
            victim.start()
        for job in jobs:
            one.await_state(job, "done", within=60)
    assert set(lines(runs)) == set(jobs), "nothing is lost"
    assert len(lines(runs)) == len(jobs), "nor run twice: no lease ran out meanwhile"
    for server in (nginx, one, two):
        server.close()
