"""Commands for real: signals, time-outs, output, what they find and what they leave behind."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from pollwise.agent.commands.command import Command, CommandResult, Stop, processes_of
from pollwise.agent.commands.files import remove_tree
from pollwise.agent.commands.results import read_progress
from pollwise.agent.folder import AgentFolder, is_id
from pollwise.agent.job import AgentJob, AgentRun
from pollwise.agent.link import ControllerLink
from pollwise.agent.log import LOG_MAX
from pollwise.agent.options import AgentOptions
from pollwise.errors import ConfigError
from pollwise.queues.http.client import AnswerTooLarge, ControllerClient, TokenSource
from pollwise.runtime.clock import Clock
from pollwise.runtime.variables import NO_SETTINGS
from tests.support.daemons import wait_until

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

SH = "/bin/sh"


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run(
    script: str,
    folder: Path,
    *,
    stop_when: Callable[[], bool] | None = None,
    why: str = "cancel",
    timeout: float | None = None,
    kill_after: float = 10.0,
) -> tuple[CommandResult, bytes]:
    """Run a script to its end; stop it as soon as something is so."""
    (folder / "payload.json").write_text('{"a": 1}')
    output = bytearray()

    async def main() -> CommandResult:
        stop = Stop()
        command = Command(
            [SH, "-c", script], folder, dict(os.environ), output.extend,
            timeout=timeout, kill_after=kill_after,
        )  # fmt: skip
        running = asyncio.ensure_future(command.run(stop))
        if stop_when is not None:
            await asyncio.to_thread(wait_until, stop_when, "the command got so far")
            stop.ask(why)
        return await running

    return asyncio.run(main()), bytes(output)


def test_output_exit_code_and_stdin(tmp_path: Path) -> None:
    ended, output = run("cat; echo; echo oops >&2; exit 3", tmp_path)
    assert (ended.exit_code, ended.why) == (3, None)
    assert ended.error == "the command ended with exit code 3"
    assert output == b'{"a": 1}\noops\n'
    assert run("true", tmp_path) == (CommandResult(0), b"")


def test_a_command_that_dies_of_a_signal(tmp_path: Path) -> None:
    ended, _ = run("kill -SEGV $$", tmp_path)
    assert (ended.exit_code, ended.error) == (-11, "the command was ended by SIGSEGV")


def test_cancel_asks_first(tmp_path: Path) -> None:
    script = "trap 'echo bye; exit 7' TERM; touch ready; while :; do sleep 0.05; done"
    ended, output = run(script, tmp_path, stop_when=(tmp_path / "ready").exists)
    assert (ended.exit_code, ended.why, ended.error) == (7, "cancel", None)
    assert output.endswith(b"bye\n")


def test_cancel_insists_and_takes_the_whole_group(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 60 & echo $! > child; touch ready; while :; do sleep 0.05; done"
    ended, _ = run(script, tmp_path, stop_when=(tmp_path / "ready").exists, kill_after=0.2)
    assert (ended.exit_code, ended.why) == (-9, "cancel")
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not lives(child), "its child is gone too")


def test_a_timeout_ends_it(tmp_path: Path) -> None:
    ended, _ = run("sleep 60", tmp_path, timeout=0.2)
    assert ended.why == "timeout"
    assert ended.error == "the command ran longer than its timeout of 0.2 s and was ended"


def test_what_it_leaves_behind_neither_runs_on_nor_holds_it_up(tmp_path: Path) -> None:
    ended, output = run("sleep 60 & echo $! > child; echo done", tmp_path)
    assert (ended.exit_code, output) == (0, b"done\n")
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not lives(child), "what it left is gone")


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text("1")

    async def main() -> CommandResult:
        command = Command([str(tmp_path / "gone")], tmp_path, {}, print, timeout=None, kill_after=1)
        return await command.run(Stop())

    ended = asyncio.run(main())
    assert ended.exit_code is None
    assert "could not be started" in str(ended.error)


def test_much_output_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, bytes]] = []
    monkeypatch.setattr("pollwise.agent.log.LOG_MAX", 100_000)
    assert LOG_MAX > 100_000

    class Quiet(ControllerLink):
        async def log(self, job_id: str, offset: int, data: bytes) -> tuple[int, bool]:
            sent.append((offset, data))
            return offset + len(data), True

    report = whole_run(tmp_path, "head -c 3000000 /dev/zero | tr '\\0' x", link=Quiet)
    assert report is not None
    assert report["state"] == "done"
    text = b"".join(data for _, data in sent)
    assert [offset for offset, _ in sent] == sorted({offset for offset, _ in sent})
    assert text.startswith(b"x" * 100_000 + b"\n[pollwise: 2900000 bytes of output were left out]")


def test_the_log_of_a_command_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: bytes, offset: int) -> int:
        if offset >= 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(file, data[: 1000 - offset], offset)

    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr("pollwise.agent.log.TAIL_MAX", 2000)
    script = "head -c 2900 /dev/zero | tr '\\0' x; printf '%0200d' 7; ln -s / $POLLWISE_OUT/l"
    logged: list[Any] = []
    assert whole_run(tmp_path, script, logged=logged) is not None
    text = b"".join(data for _, data in logged).decode()
    assert text.startswith("x" * 2900 + "0" * 100 + "[pollwise: not sent"), text[2900:]
    assert text.endswith("\n[pollwise: 100 bytes of output were left out]\n")


# A whole run of a job


class Deaf(ControllerLink):
    """Takes logs and artefacts, and remembers them."""

    artefacts: list[tuple[str, bytes]]

    async def log(self, job_id: str, offset: int, data: bytes) -> tuple[int, bool]:
        vars(self).setdefault("artefacts", []).append(("the log", data))
        return offset + len(data), True

    async def send_artefact(self, job_id: str, name: str, file: IO[bytes]) -> None:
        vars(self).setdefault("artefacts", []).append((name, file.read()))

    async def fetch_input(self, job_id: str, name: str, to: Path, most: int) -> int:
        to.parent.mkdir(parents=True, exist_ok=True)
        if to.name.startswith("endless"):
            raise AnswerTooLarge(f"more than {most} bytes")
        return to.write_text(f"the input {name}")


def whole_run(
    tmp_path: Path,
    script: str,
    *,
    link: type[ControllerLink] = Deaf,
    words: tuple[str, ...] = (),
    inputs: tuple[str, ...] = (),
    made: list[Any] | None = None,
    logged: list[Any] | None = None,
    **options: Any,
) -> dict[str, Any] | None:
    async def main() -> dict[str, Any] | None:
        clock = Clock()
        the_link = link(ControllerClient("http://controller", clock), TokenSource("none"), clock)
        chosen = AgentOptions(
            "http://controller", [SH, "-c", script, *words], folder=tmp_path / "root", **options
        )
        root = AgentFolder(chosen.folder, "test")
        work = AgentJob("0a1b", "build", {"a": "$(touch /tmp/no)"}, 2, 3, None, inputs)
        try:
            return await AgentRun(work, chosen, root, the_link, clock).run()
        finally:
            root.close()
            for each in vars(the_link).get("artefacts", []):
                kept = logged if each[0] == "the log" else made
                if kept is not None:
                    kept.append(each)

    return asyncio.run(main())


def test_what_a_command_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLWISE_TOKEN", "hunter2")
    monkeypatch.setenv("POLLWISE_TOKEN_FILE", "/hunter2")
    show = (
        "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), "
        "open(os.environ['POLLWISE_INPUTS'] + '/deep/in.txt').read()]))"
    )
    script = f'{shlex.quote(sys.executable)} -c "{show}" "$@" > $POLLWISE_RESULT'
    report = whole_run(
        tmp_path,
        script,
        words=("sh", "{payload}", "{job_id}", "{inputs}", "{out}", "a b;c"),
        inputs=("deep/in.txt",),
    )
    assert report is not None
    assert report["state"] == "done", report
    (payload, job_id, inputs, out, plain), environ, folder, text = report["result"]
    assert (job_id, plain, text) == ("0a1b", "a b;c", "the input deep/in.txt")
    assert payload == f"{folder}/payload.json"
    assert (inputs, out) == (f"{folder}/inputs", f"{folder}/out")
    assert {name for name in environ if name.startswith("POLLWISE_")} <= NO_SETTINGS
    assert environ["POLLWISE_ATTEMPT"] == "2"
    assert environ["POLLWISE_JOB_KIND"] == "build"
    assert environ["POLLWISE_PAYLOAD"] == payload
    assert "hunter2" not in json.dumps(environ)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"traceparent": TRACEPARENT, "tracestate": "a=1"}, [TRACEPARENT, "a=1"]),
        ({"traceparent": TRACEPARENT, "tracestate": "a\n"}, [TRACEPARENT, None]),
        ({"traceparent": "$(touch /tmp/no)", "tracestate": "a=1", "path": "/no"}, [None, None]),
        ({"traceparent": 7}, [None, None]),
        ("traceparent", [None, None]),
        (None, [None, None]),
    ],
)
def test_a_command_finds_the_trace_of_its_put_if_it_is_valid(
    headers: object, found: list[str | None]
) -> None:
    work = AgentJob.of({"id": "0a1b", "headers": headers})
    assert [work.trace.get("traceparent"), work.trace.get("tracestate")] == found
    assert work.trace.keys() <= {"traceparent", "tracestate"}


def test_artefacts_are_those_that_match_and_none_from_elsewhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret.zip"
    secret.write_text("secret")
    script = f"cd $POLLWISE_OUT; echo a > a.zip; echo b > b.txt; mkdir d; echo c > d/c.zip; \
        ln -s {secret} link.zip; ln -s {tmp_path} folder; ln -s a.zip same.zip"
    made: list[Any] = []
    whole_run(tmp_path, script, artefacts=["*.zip", "d/*"], made=made)
    assert made == [("a.zip", b"a\n"), ("same.zip", b"a\n"), ("d/c.zip", b"c\n")]
    made.clear()
    whole_run(tmp_path, script, made=made)
    assert {name for name, _ in made} == {"a.zip", "b.txt", "d/c.zip", "same.zip"}


def log_of(tmp_path: Path, script: str, **given: Any) -> tuple[str, list[str]]:
    """What the log of a job says, and the names of its artefacts."""
    made: list[Any] = []
    logged: list[Any] = []
    report = whole_run(tmp_path, script, made=made, logged=logged, **given)
    assert report is not None
    assert report["state"] == "done", report
    return b"".join(data for _, data in logged).decode(), [name for name, _ in made]


def test_what_is_no_file_is_left_out_and_the_log_says_so(tmp_path: Path) -> None:
    bind = "import socket; socket.socket(socket.AF_UNIX).bind('s.sock')"
    script = f"""cd $POLLWISE_OUT; echo built; echo a > a.txt; ln -s a.txt same.txt
        ln -s /etc/passwd out.txt; ln -s / folder; ln -s nowhere broken; ln -s loop loop
        ln -s /etc/hosts "new
line"; mkfifo pipe; {shlex.quote(sys.executable)} -c "{bind}" """
    log, made = log_of(tmp_path, script)
    assert made == ["a.txt", "same.txt"]
    built, *lines = log.splitlines()
    assert built == "built"
    left_out = "not sent from $POLLWISE_OUT"
    links = "symbolic links that lead out of it, to a folder, or nowhere"
    assert lines == [
        f"[pollwise: {left_out}: {links} (5: broken, folder, loop, new?line, out.txt)]",
        f"[pollwise: {left_out}: FIFOs (1: pipe)]",
        f"[pollwise: {left_out}: sockets (1: s.sock)]",
    ]


def test_much_that_is_no_file_takes_one_line(tmp_path: Path) -> None:
    log, made = log_of(tmp_path, "cd $POLLWISE_OUT; for i in $(seq 100 199); do ln -s / $i; done")
    assert made == []
    assert log.endswith("(100: 100, 101, 102, 103, 104, …)]\n")
    assert log.count("\n") == 1


def test_what_no_pattern_asks_for_is_not_spoken_of(tmp_path: Path) -> None:
    log, made = log_of(tmp_path, "cd $POLLWISE_OUT; ln -s / l; > a.zip", artefacts=["*.zip"])
    assert (log, made) == ("", ["a.zip"])


def test_a_folder_that_became_a_link_gives_nothing_away(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    log, made = log_of(tmp_path, f"rm -r $POLLWISE_OUT; ln -s {tmp_path}/secrets $POLLWISE_OUT")
    assert made == []
    assert "(1: $POLLWISE_OUT itself)" in log
    # Nor does a link in a folder on the way.
    script = f"ln -s {tmp_path}/secrets $POLLWISE_OUT/deep"
    log, made = log_of(tmp_path, script, artefacts=["deep/*"])
    assert made == []
    assert "(1: deep)" in log


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "..", ""])
def test_an_input_does_not_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    report = whole_run(tmp_path, "true", inputs=(name,))
    assert report is not None
    assert report["state"] == "failed"
    assert "leads out of its folder" in report["error"]


def test_names_that_are_not_printable_are_left_out(tmp_path: Path) -> None:
    names = ("a\nb", "a\rb", "a\tb", "a\033[31mb")
    touches = "; ".join(f"touch {shlex.quote(name)}" for name in (*names, "good"))
    log, made = log_of(tmp_path, f"cd $POLLWISE_OUT; {touches}")
    assert made == ["good"]
    assert "unprintable characters; rename the files (4: " in log
    assert "\033" not in log


def test_inputs_have_limits(tmp_path: Path) -> None:
    report = whole_run(tmp_path, "true", inputs=("a", "endless"), input_limit=100)
    assert report is not None
    assert report["state"] == "failed"
    assert "more than 100 bytes together" in report["error"]
    report = whole_run(tmp_path, "true", inputs=tuple(map(str, range(10_001))))
    assert report is not None
    assert "10001 inputs; at most 10000" in report["error"]
    with pytest.raises(ConfigError, match="input_limit = -1"):
        AgentOptions("http://controller", [SH], input_limit=-1)


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "is not JSON"), ("NaN", "is not JSON"), ('"' + "x" * 300_000 + '"', "more than")],
)
def test_a_result_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "result").write_text(text)
    report = whole_run(tmp_path, f"cp {tmp_path}/result $POLLWISE_RESULT")
    assert report is not None
    assert report["state"] == "failed"
    assert says in report["error"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.5 half way\n", {"progress": 0.5, "message": "half way"}),
        ("1\n42% linking\n", {"progress": 42.0, "message": "linking"}),
        ("just words\n\n", {"message": "just words"}),
        ("-3 less\n", {"message": "less"}),
        ("nan x\n\x1b[31mred", {"message": " [31mred"}),
        ("", {}),
    ],
)
def test_progress(tmp_path: Path, text: str, said: dict[str, Any]) -> None:
    (tmp_path / "progress").write_text(text)
    assert read_progress(tmp_path) == said


def test_files_that_never_answer_hold_up_neither_polls_nor_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = threading.Event()

    def stuck(*_: object) -> Any:
        forever.wait()

    for name in ("read_progress", "read_result"):
        monkeypatch.setattr(f"pollwise.agent.job.{name}", stuck)
    monkeypatch.setattr("pollwise.agent.job.PROGRESS_WITHIN", 0.05)
    monkeypatch.setattr("pollwise.agent.job.READ_WITHIN", 0.2)
    report = whole_run(tmp_path, "true")  # asyncio.run would wait for threads that are not daemons
    assert report is not None
    assert report["state"] == "failed"
    assert report["error"] == "result.json could not be read within 0.2 s"
    assert list((tmp_path / "root" / "jobs").iterdir()) == [], "and its folder is removed"
    forever.set()


# Options and folders


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([], "there is no command"),
        (["./no-such-program"], "does not exist or is not executable"),
        ([SH, "--in={payload}"], "must be a separate argument"),
        ([SH, "{paylod}"], "did you mean {payload}?"),
        ([SH, "{id}"], "is not a placeholder"),
        ([SH, "a\0b"], "NUL"),
    ],
)
def test_a_command_that_cannot_be_meant(command: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        AgentOptions("http://localhost:8420", command)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"slots": 0}, "slots = 0"),
        ({"poll_interval": "5m"}, "above max_interval"),
        ({"timeout": "8d"}, "7 days"),
        ({"artefacts": ["../x"]}, "within the folder"),
        ({"artefacts": ["/x"]}, "within the folder"),
        ({"name": "a\nb"}, "printable"),
    ],
)
def test_options_are_checked(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        AgentOptions("http://localhost:8420", [SH], **options)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:8420", "not the address of a controller"),
        ("ftp://x", "not the address of a controller"),
        ("http://:hunter2@host", "credentials"),
        ("http://hunter2@host", "credentials"),
        ("http://host?token=hunter2", "has no '?'"),
        ("http://host:port", "port"),
    ],
)
def test_addresses_are_checked_and_secrets_not_shown(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        AgentOptions(url, [SH])
    assert says in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_what_a_killed_agent_left_is_ended_and_removed(tmp_path: Path) -> None:
    root = AgentFolder(tmp_path, "a")
    folder = root.fresh("0a", 1)

    async def main() -> None:
        environ = {**os.environ, "POLLWISE_WORK": str(folder)}
        script = "setsid sleep 60 & exec sleep 60"  # one that left the group as well
        process = await asyncio.create_subprocess_exec(SH, "-c", script, env=environ)
        jobs = root.path / "jobs"
        await asyncio.to_thread(wait_until, lambda: len(processes_of(jobs)) == 2, "both run")
        assert processes_of(root.path / "job") == []
        assert root.sweep() == 1
        assert await process.wait() == -9
        await asyncio.to_thread(wait_until, lambda: not processes_of(jobs), "none runs")

    asyncio.run(main())
    assert list((root.path / "jobs").iterdir()) == []
    root.close()


def test_folders_that_nobody_may_read_are_removed() -> None:
    top = Path(tempfile.mkdtemp())
    outside = top / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = top / "job"
    deep = folder / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (folder / "link").symlink_to(outside)
    (folder / "a" / "b" / "link").symlink_to(outside / "kept")
    for path in (deep, deep.parent, deep.parent.parent, folder):
        path.chmod(0)
    if os.getuid() == 0:  # whom no permissions stop
        subprocess.run(["chown", "-hR", "65534:65534", str(top)], check=True)
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            remove_tree(folder)
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not folder.exists()
    assert (outside / "kept").exists(), "no link was followed"
    remove_tree(top)
    assert not top.exists()


def test_what_cannot_be_removed_is_named_and_the_rest_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "job"
    (folder / "a" / "b").mkdir(parents=True)
    for path in (folder / "1", folder / "a" / "2", folder / "a" / "b" / "stuck"):
        path.touch()
    unlink = os.unlink

    def no(path: Any, **given: Any) -> None:
        if path == "stuck":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, **given)

    monkeypatch.setattr(os, "unlink", no)
    with pytest.raises(PermissionError):
        remove_tree(folder)
    assert [each.name for each in folder.rglob("*") if each.is_file()] == ["stuck"]


def test_results_survive_and_what_is_half_written_does_not(tmp_path: Path) -> None:
    root = AgentFolder(tmp_path, "a")
    root.save({"job_id": "0a", "state": "done"})
    (tmp_path / "results" / "0b.json").write_text('{"job_id": "0')
    (tmp_path / "results" / "0c.json").write_text('{"job_id": "../../x"}')
    os.mkfifo(tmp_path / "results" / "0d.json")
    (tmp_path / "results" / "0e.json").mkdir()
    (tmp_path / "results" / "0f.json").symlink_to("/dev/zero")
    root.close()
    again = AgentFolder(tmp_path, "a")
    assert again.saved() == [{"job_id": "0a", "state": "done"}]
    again.remove("0a")
    again.remove("0a")
    assert list((tmp_path / "results").iterdir()) == []
    again.close()


@pytest.mark.parametrize("job_id", ["", "../x", "a/b", ".b", "x" * 201, None, 7])
def test_what_is_no_id(job_id: object) -> None:
    assert not is_id(job_id)


def test_agents_of_one_name_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, two = AgentFolder(None, "../mac mini"), AgentFolder(None, "../mac mini")
    assert one.path.parent == two.path.parent == tmp_path / "pollwise" / "agent"
    assert one.path != two.path
    one.close()
    two.close()
