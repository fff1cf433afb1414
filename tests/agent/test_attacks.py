"""Commands that attack their agent, one after another, with a real agent and controller."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pollwise.agent.commands.files import remove_tree
from tests.agent.processes import AgentProcess, ServeProcess
from tests.agent.test_commands import lives
from tests.support.daemons import wait_until
from tests.support.servers import Servers

#: Runs the script that the payload names.
RUN_PAYLOAD = '. "$(tr -d \\" < "$1")"'
PYTHON = shlex.quote(sys.executable)


class Farm:
    """A controller and one agent with one slot."""

    def __init__(self, controller: ServeProcess, agent: AgentProcess) -> None:
        self.controller = controller
        self.agent = agent
        self._count = 0

    def put(self, script: str, **given: Any) -> str:
        self._count += 1
        file = self.agent.folder / f"{self._count}.sh"
        file.write_text(script)
        return self.controller.put(payload=str(file), attempts=1, **given)

    def ended(self, job: str) -> Any:
        """How a job ended; the agent has done an honest job since."""
        honest = self.put("echo 7 > $POLLWISE_RESULT")
        assert self.controller.await_state(honest, "done", within=60)["result"] == 7
        assert self.agent.log.count("worker_registered") == 1, self.agent.log
        assert "Traceback" not in self.agent.log, self.agent.log
        return self.controller.job(job)

    def await_removed(self, job: str) -> None:
        jobs = self.agent.folder / "agent" / "jobs"
        wait_until(lambda: not list(jobs.glob(f"{job}.*")), "its folder is removed", 60)


@pytest.fixture(scope="module")
def farm(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    controller = servers.begin(ServeProcess(servers), {})
    folder = tmp_path_factory.mktemp("attacks")
    options = ("--set", "agent.kill_after=300ms")
    token = controller.token("worker")
    with AgentProcess(controller.url, token, folder / "a", RUN_PAYLOAD, *options) as agent:
        yield Farm(controller, agent)
    controller.close()
    remove_tree(folder)  # pytest cannot: it may be too deep


BIND = f"{PYTHON} -c 'import os, socket; socket.socket(socket.AF_UNIX).bind(\"result.json\")'"
NESTED = "print('[' * {0} + ']' * {0})"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("mkfifo $POLLWISE_RESULT", "it is not a regular file"),
        ("ln -s /dev/zero $POLLWISE_RESULT", "it is not a regular file"),
        ("ln -s /etc/hostname $POLLWISE_RESULT", "it is not a regular file"),
        ("mkdir $POLLWISE_RESULT", "it is not a regular file"),
        (BIND, "it is not a regular file"),
        ("truncate -s 20G $POLLWISE_RESULT", "21474836480 bytes, more than 262144"),
        (f'{PYTHON} -c "{NESTED.format(90000)}" > $POLLWISE_RESULT', "nested too deep"),
        (f'{PYTHON} -c "{NESTED.format(300)}" > $POLLWISE_RESULT', "nests deeper than 200"),
        ("echo '\"\\ud800\"' > $POLLWISE_RESULT", "surrogates not allowed"),
        ("cd /; mv $POLLWISE_WORK $POLLWISE_WORK.x; ln -s /tmp $POLLWISE_WORK", "cannot be read"),
        ("cd $POLLWISE_OUT; for i in $(seq 1001); do : > $i; done", "more than 1000 artefacts"),
        ("kill -9 $PPID; sleep 60", "ended by SIGKILL"),
    ],
)
def test_what_is_no_result_fails_the_job_alone(farm: Farm, script: str, says: str) -> None:
    job = farm.ended(farm.put(script))
    assert job["state"] == "dead", job
    assert says in job["error"]


WAIT = "while [ ! -e {0} ]; do sleep 0.05; done"
DEEP = """
import os
os.chdir(os.environ["POLLWISE_OUT"])
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
open("file", "w")
"""


@pytest.mark.parametrize(
    ("script", "logged"),
    [
        ("rm -f log; mkfifo log; echo hi", "hi"),
        ("ln -sf /dev/zero log; echo hi", "hi"),
        ("seq 1000; : > log; seq 1000", ""),
        ("rm -r $POLLWISE_OUT; mkfifo $POLLWISE_OUT", "cannot be read (1: $POLLWISE_OUT itself)"),
        ("mkfifo ../../results/$POLLWISE_JOB_ID.draft", ""),
        ("rm -rf ../../results ../../lock", ""),
        (": > $POLLWISE_OUT/$(printf 'caf\\351'); : > $POLLWISE_OUT/ok", "not UTF-8"),
        (f"{PYTHON} -c {shlex.quote(DEEP)}", "100 levels deep"),
        ("head -c 70000000 /dev/zero", "the log is cut here"),
        ("head -c 1000 /dev/urandom; kill -TERM 0; sleep 60", None),
        ("exec 3>&1; setsid sleep 300 & echo hi", "hi"),
        ("ulimit -n 20; chmod 000 .; echo hi", "hi"),
    ],
)
def test_a_hostile_folder_costs_nothing_but_its_own_job(
    farm: Farm, script: str, logged: str | None
) -> None:
    job = farm.put(script)
    told = farm.ended(job)
    assert told["state"] == ("done" if logged is not None else "dead"), told
    assert (logged or "") in farm.controller.log_of(job)
    farm.await_removed(job)


@pytest.mark.parametrize(
    "make", ["mkfifo", "ln -s /dev/zero", "ln -s /dev/tty", "mkdir", "truncate -s 9G"]
)
def test_progress_that_is_no_file_stops_no_poll(farm: Farm, tmp_path: Path, make: str) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    job = farm.put(f"{make} $POLLWISE_PROGRESS; touch {ready}; {WAIT.format(go)}")
    wait_until(ready.exists, "the command runs")
    farm.controller.ask("POST", f"/api/jobs/{job}/cancel")
    farm.controller.await_state(job, "cancelled")  # only a poll or a hint brings that
    go.touch()
    assert farm.ended(job)["state"] == "cancelled"


# A process in a session of its own, whose parent has ended, and without the job's environment.
HIDDEN = "(setsid env -i sh -c 'sleep 300 & echo $! > {0}; sleep 300' &)"


@pytest.mark.parametrize("way", ["end", "timeout", "cancel", "supervisor"])
def test_processes_that_left_the_session_end_with_the_job(
    farm: Farm, tmp_path: Path, way: str
) -> None:
    pid = tmp_path / "pid"
    hidden = HIDDEN if way != "supervisor" else HIDDEN.replace("env -i ", "")
    last = {"end": "", "supervisor": "kill -9 $PPID; sleep 60"}.get(way, "sleep 60")
    started = f"while [ ! -s {pid} ]; do sleep 0.05; done"
    job = farm.put(
        f"trap '' TERM; {hidden.format(pid)}; {started}; {last}",
        **({"timeout_s": 1} if way == "timeout" else {}),
    )
    if way == "cancel":
        wait_until(lambda: pid.exists() and pid.read_text().strip() != "", "the process runs")
        farm.controller.ask("POST", f"/api/jobs/{job}/cancel")
    told = farm.ended(job)
    assert told["state"] == {"end": "done", "cancel": "cancelled"}.get(way, "dead"), told
    if way == "timeout":
        assert "longer than its timeout" in told["error"]
    assert not lives(int(pid.read_text()))


def test_a_command_that_forks_without_end_is_ended(farm: Farm, tmp_path: Path) -> None:
    count = tmp_path / "count"
    # A generation of processes in sessions of their own starts the next one and ends.
    script = f"""
cat > again.sh <<'END'
echo $$ >> {count}
setsid sh ./again.sh &
END
for i in 1 2 3 4; do setsid sh ./again.sh & done
sleep 60
"""
    job = farm.put(script, timeout_s=2)
    assert farm.ended(job)["state"] == "dead"
    pids = [int(each) for each in count.read_text().split()]
    assert len(pids) > 10
    assert not any(map(lives, pids))
    farm.await_removed(job)


def test_a_supervisor_that_is_stopped_holds_nothing_up(farm: Farm) -> None:
    told = farm.ended(farm.put("kill -STOP $PPID; sleep 60", timeout_s=1))
    assert told["state"] == "dead"
    assert "longer than its timeout" in told["error"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_command_that_fills_the_disk_fails_alone(farm: Farm, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this root cannot mount")
    script = 'if [ "$(cat "$1")" = 1 ]; then cat /dev/zero > big; fi; echo 2 > $POLLWISE_RESULT'
    url, token = farm.controller.url, farm.controller.token("worker")
    options = ("--capability", "disk=small", "--folder", str(disk / "agent"))
    given: dict[str, Any] = {"attempts": 1, "requires": {"disk": "small"}}
    try:
        with AgentProcess(url, token, tmp_path / "a", script, *options) as agent:
            full = farm.controller.put(payload=1, **given)
            honest = farm.controller.put(payload=2, **given)
            assert farm.controller.await_state(honest, "done", 60)["result"] == 2
            assert "No space left on device" in farm.controller.log_of(full)
            assert farm.controller.job(full)["state"] in ("done", "dead")
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
