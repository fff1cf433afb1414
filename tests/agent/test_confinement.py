"""What commands get of the machine: variables, a user of their own, a sandbox."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pollwise.agent.commands.confinement import CommandUser, Sandbox, passed_environ
from pollwise.agent.commands.files import open_inside, remove_tree
from pollwise.agent.options import AgentOptions
from pollwise.errors import ConfigError
from pollwise.platforms.processes import hide_memory
from tests.agent.processes import AgentProcess, ServeProcess
from tests.agent.test_commands import lives
from tests.support.daemons import wait_until
from tests.support.servers import Servers

ROOT = os.getuid() == 0
NOBODY = "nobody"


@pytest.fixture(scope="module")
def controller(servers: Servers) -> Iterator[ServeProcess]:
    started = servers.begin(ServeProcess(servers), {})
    yield started
    started.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can enter."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    yield made
    remove_tree(made)


def test_commands_get_the_variables_that_are_allowed() -> None:
    environ = {
        "PATH": "/bin", "LC_ALL": "C", "HOME": "/home/a", "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "eu", "JAVA_HOME": "/java", "POLLWISE_TOKEN": "s", "POLLWISE_X": "s",
    }  # fmt: skip
    assert set(passed_environ((), environ)) == {"PATH", "LC_ALL", "HOME"}
    more = set(passed_environ(("JAVA_HOME", "AWS_R*"), environ))
    assert more == {"PATH", "LC_ALL", "HOME", "JAVA_HOME", "AWS_REGION"}
    everything = set(passed_environ(("*",), environ))
    assert everything == environ.keys() - {"POLLWISE_TOKEN", "POLLWISE_X"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"env": ["A=b"]}, "env = 'A=b' must be the name of a variable"),
        ({"env": [""]}, "env = ''"),
        ({"user": "no-such-user"}, "user = 'no-such-user' does not exist"),
        ({"user": "root"}, "only root can run commands as another user"),
        ({"sandbox": "docker"}, "sandbox = 'docker' is not known"),
        ({"sandbox": "bwrap"}, "install bubblewrap"),
        ({"sandbox_args": ["--unshare-net"]}, "set sandbox = 'bwrap' as well"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(
    options: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollwise.agent.commands.confinement.os.geteuid", lambda: 1000)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "bwrap" else which(name))
    with pytest.raises(ConfigError) as raised:
        AgentOptions("http://localhost:8420", ["/bin/sh"], **options)
    assert says in str(raised.value)


def test_somebody_elses_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with open_inside(tmp_path, "file", owner=os.getuid()) as file:
        assert file.read() == b"x"
    with pytest.raises(OSError, match="not a regular file"):
        open_inside(tmp_path, "file", owner=os.getuid() + 1)


def test_a_folder_out_of_reach_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    user = CommandUser("daemon", os.getuid() + 4321, os.getgid() + 4321, "/", "/bin/sh")
    with pytest.raises(ConfigError) as raised:
        user.check_reach(closed / "jobs")
    assert "may not enter" in str(raised.value)
    assert "--folder" in str(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows them at all")
def test_the_agents_environment_is_hidden_from_its_own_user() -> None:
    child = os.fork()
    if child == 0:
        try:
            if ROOT:  # whom nothing is hidden from
                os.setuid(pwd.getpwnam(NOBODY).pw_uid)
            show = ["/bin/cat", f"/proc/{os.getpid()}/environ"]
            before = subprocess.run(show, capture_output=True).returncode
            hide_memory()
            after = subprocess.run(show, capture_output=True).returncode
            os._exit(7 if after != 0 and (before == 0 or ROOT) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_commands_run_with_few_variables(
    controller: ServeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_KEY", "hunter2")
    monkeypatch.setenv("JAVA_HOME", "/java")
    script = 'env | grep -c hunter2; printf \'"%s"\' "$JAVA_HOME" > $POLLWISE_RESULT'
    token = controller.token("worker")
    with AgentProcess(controller.url, token, tmp_path / "a", script, "--env", "JAVA_*"):
        job = controller.put(attempts=1)
        assert controller.await_state(job, "done")["result"] == "/java"
    assert controller.log_of(job) == "0\n"


STEAL = """
fail() { echo "it can $1"; exit 9; }
[ "$(id -u)" = UID ] || fail "be somebody else"
cat {token} >/dev/null 2>&1 && fail "read the token"
cat /proc/{agent}/environ >/dev/null 2>&1 && fail "read the environment of the agent"
kill -0 $PPID 2>/dev/null && fail "signal its supervisor"
ls ../../results ../ >/dev/null 2>&1 && fail "see other jobs"
touch ../x ../../x 2>/dev/null && fail "write to the folder of the agent"
cat "$1" > $POLLWISE_OUT/payload || exit 8
echo 1 > $POLLWISE_RESULT
"""


@pytest.mark.skipif(not ROOT, reason="only root can run commands as another user")
def test_commands_run_as_another_user(controller: ServeProcess, folder: Path) -> None:
    token = controller.token("worker")
    script = '. "$(tr -d \\" < "$1")"'
    options = ("--user", NOBODY, "--set", "agent.kill_after=300ms")
    with AgentProcess(controller.url, token, folder / "a", script, *options) as agent:
        uid = str(pwd.getpwnam(NOBODY).pw_uid)
        steal = STEAL.replace("{token}", str(token)).replace("UID", uid)
        pid = folder / "a" / "pid"
        pid.touch()
        pid.chmod(0o666)
        hidden = f"(setsid env -i sh -c 'echo $$ > {pid}; exec sleep 300' &); sleep 60"
        scripts = {
            "done": steal.replace("{agent}", str(agent.process.pid)),
            "dead": "ln -s /etc/shadow $POLLWISE_RESULT",
            "overdue": hidden,
        }
        jobs = {}
        for name, text in scripts.items():
            (folder / "a" / name).write_text(text)
            given: dict[str, Any] = {"timeout_s": 1} if name == "overdue" else {}
            jobs[name] = controller.put(payload=str(folder / "a" / name), attempts=1, **given)
        wait_until(lambda: controller.job(jobs["done"])["state"] in ("done", "dead"), "it ends")
        done = controller.job(jobs["done"])
        assert done["state"] == "done", controller.log_of(jobs["done"])
        assert "not a regular file" in controller.await_state(jobs["dead"], "dead")["error"]
        assert "timeout" in controller.await_state(jobs["overdue"], "dead")["error"]
        assert not lives(int(pid.read_text()))
        left = folder / "a" / "agent" / "jobs"
        wait_until(lambda: not list(left.iterdir()), "their folders are removed")
        assert stat.S_IMODE((left.parent / "results").stat().st_mode) == 0o700
        names = [
            each["name"]
            for each in controller.ask("GET", f"/api/jobs/{jobs['done']}/artefacts")["artefacts"]
        ]
        assert names == ["payload"]


@pytest.mark.skipif(not ROOT, reason="only root can run commands as another user")
def test_a_token_file_that_the_user_can_read_ends_the_agent(
    controller: ServeProcess, folder: Path
) -> None:
    token = controller.token("worker")
    nobody = pwd.getpwnam(NOBODY).pw_uid
    for mode, owner, says in ((0o644, 0, "run `chmod 600"), (0o600, nobody, "belongs to the user")):
        token.chmod(mode)
        os.chown(token, owner, -1)
        with AgentProcess(controller.url, token, folder / "a", "true", "--user", NOBODY) as agent:
            assert agent.process.wait(60) == 2
            assert says in " ".join(agent.log.split())


@pytest.mark.skipif(not ROOT, reason="only root can run commands as another user")
def test_a_folder_that_the_user_cannot_reach_ends_the_agent(
    controller: ServeProcess, folder: Path
) -> None:
    inner = folder / "closed"
    inner.mkdir(mode=0o700)
    token = controller.token("worker")
    with AgentProcess(controller.url, token, inner / "a", "true", "--user", NOBODY) as agent:
        assert agent.process.wait(30) != 0
        assert "may not enter" in " ".join(agent.log.split())


# bubblewrap


def test_the_words_of_a_sandbox(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "token").touch()
    hidden = [tmp_path / "agent", tmp_path / "token", tmp_path / "nowhere"]
    sandbox = Sandbox("/usr/bin/bwrap", hidden, ["--unshare-net"])
    job = tmp_path / "agent" / "jobs" / "1"
    words = sandbox.words(["/bin/sh", "-c", "true"], job)
    text = " ".join(words)
    assert words[0] == "/usr/bin/bwrap"
    assert text.endswith(f"--chdir {job} --unshare-net -- /bin/sh -c true")
    assert "--unshare-pid" in words
    assert "--ro-bind / /" in text
    agent, token = text.index(f"--tmpfs {hidden[0]}"), text.index(f"/dev/null {hidden[1]}")
    assert text.index("--ro-bind / /") < agent < token < text.index(f"--bind {job} {job}")
    assert "nowhere" not in text


def test_a_sandbox_that_does_not_work_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        Sandbox(sys.executable, [], ["-c", "no"]).check(tmp_path, None)
    assert "does not work on this machine" in str(raised.value)


needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed; see scripts/system-deps"
)

ESCAPE = """
fail() { echo "it can $1"; exit 9; }
grep -q . {token} && fail "read the token"
[ -z "$(ls {folder}/agent/jobs 2>/dev/null | grep -v "^$POLLWISE_JOB_ID[.]")" ] || fail "see jobs"
[ -e {folder}/agent/results ] && fail "see the reports"
touch {folder}/x /usr/x 2>/dev/null && fail "write elsewhere"
[ -e /proc/{agent}/environ ] && grep -q POLLWISE_AGENT /proc/{agent}/environ && fail "see the agent"
kill -9 {agent} 2>/dev/null && [ {agent} -gt 20 ] && fail "signal the agent"
touch /tmp/x || exit 8
cat "$1" > $POLLWISE_OUT/payload || exit 7
(setsid sh -c 'sleep 300' &)
echo 1 > $POLLWISE_RESULT
"""


@needs_bwrap
@pytest.mark.parametrize("user", [None, NOBODY])
def test_commands_run_in_a_sandbox(
    controller: ServeProcess, folder: Path, user: str | None
) -> None:
    if user is not None and not ROOT:
        pytest.skip("only root can run commands as another user")
    token = controller.token("worker")
    (folder / "scripts").mkdir()
    options = ["--sandbox", "bwrap", "--set", "agent.kill_after=20s"]
    options += ["--user", user] if user else []
    options += [f"--sandbox-arg={each}" for each in ("--ro-bind", folder / "scripts", "/tmp/s")]
    script = '. "/tmp/s/$(tr -d \\" < "$1")"'
    with AgentProcess(controller.url, token, folder / "a", script, *options) as agent:
        agent.await_log("worker_registered")
        escape = ESCAPE.replace("{token}", str(token)).replace("{folder}", str(folder / "a"))
        (folder / "scripts" / "one").write_text(escape.replace("{agent}", str(agent.process.pid)))
        polite = "trap 'echo bye; exit 3' TERM; while :; do sleep 0.05; done"
        (folder / "scripts" / "two").write_text(polite)
        one = controller.put(payload="one", attempts=1)
        wait_until(lambda: controller.job(one)["state"] in ("done", "dead"), "it ends", 60)
        told = controller.job(one)
        assert told["state"] == "done", (told, controller.log_of(one))
        two = controller.put(payload="two", attempts=1, timeout_s=2)
        told = controller.await_state(two, "dead", 60)
        assert "longer than its timeout" in told["error"]
        assert controller.log_of(two).endswith("bye\n"), "SIGTERM reaches the command"
