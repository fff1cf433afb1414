"""Bad input: exit code 2, one message that says what to do, no traceback, nothing changed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.console import PATIENCE, Result, files, good, pollwise

URL = "sqlite:///jobs.db"
NOBODY = 65534

WORKER = """
import pollwise
worker = pollwise.Worker("sqlite:///jobs.db")

@worker.handle("greet")
async def greet(job): ...
"""


def check_refused(result: Result, *fragments: str) -> None:
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("error: ") == 1
    assert "Traceback" not in result.err
    for fragment in fragments:
        assert fragment in result.err


def refused(folder: Path, *words: object, says: tuple[str, ...], stdin: bytes = b"") -> None:
    before = files(folder)
    check_refused(pollwise(*words, stdin=stdin), *says)
    assert files(folder) == before


# Jobs that cannot be put

PAYLOADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "not JSON": ("{'a': 1}", ("the payload {'a': 1} is not JSON", "Quote it for the shell")),
    "empty": ("", ("is not JSON",)),
    "cut short": ('{"a": 1', ("is not JSON", "line 1 column 8")),
    "two documents": ("1 2", ("Extra data",)),
    "NaN": ("[NaN]", ("NaN is not JSON",)),
    "Infinity": ('{"a": -Infinity}', ("-Infinity is not JSON",)),
    "a number out of range": ("1e999", ("not JSON", "Out of range")),
    "half a character": (r'"\ud800"', ("not JSON",)),
    "control characters": ('"\x1b[31m', (r"\x1b[31m", "is not JSON")),
    "too deep for a queue": ("[" * 201 + "]" * 201, ("nests deeper than 200 levels",)),
    "too deep for Python": ("[" * 100_000, ("nests deeper than 200 levels", "…")),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_that_is_not_json(name: str, folder: Path) -> None:
    payload, says = PAYLOADS[name]
    refused(folder, "queue", "put", URL, "greet", "--", payload, says=says)
    try:
        given = payload.encode()
    except UnicodeEncodeError:
        return
    refused(folder, "queue", "put", URL, "greet", "-", stdin=given, says=says)


def test_a_payload_that_is_not_utf8(folder: Path) -> None:
    says = ("the payload is not JSON", "JSON is UTF-8")
    refused(folder, "queue", "put", URL, "greet", "-", stdin=b'"\xff"', says=says)


def test_a_payload_that_is_too_large(folder: Path) -> None:
    limit = 1024 * 1024
    over, fits = (b'"' + b"x" * (limit - extra) + b'"' for extra in (1, 2))
    says = (f"{limit + 1} bytes", f"max_payload_bytes is {limit}", "raise the limit")
    refused(folder, "queue", "put", URL, "greet", "-", stdin=over, says=says)
    small = f"{URL}?max_payload_bytes=4"
    refused(
        folder, "queue", "put", small, "greet", "12345", says=("5 bytes", "max_payload_bytes is 4")
    )
    good("queue", "put", URL, "greet", "-", stdin=fits)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["greet", "1", "--delay", "-5s"], ("delay = '-5s' must be 0 or more",)),
        (["greet", "1", "--delay", "soon"], ("delay = 'soon' is not a duration", "'250ms'")),
        (["greet", "1", "--delay", "99999d"], ("delay", "ten years")),
        (["greet", "1", "--delay", "nan"], ("delay",)),
        (["greet", "1", "--priority", "5000"], ("priority = 5000", "-1000 to 1000")),
        (["greet", "1", "--key", ""], ("key = ''",)),
        (["greet", "1", "--unique", "a\nb"], (r"unique = 'a\nb'", "printable")),
        (["", "1"], ("kind = ''",)),
        (["a\x1b[31m", "1"], (r"kind = 'a\x1b[31m'", "printable")),
        (["k" * 201, "1"], ("201 characters", "at most 200")),
    ],
)
def test_a_job_that_cannot_be(words: list[str], says: tuple[str, ...], folder: Path) -> None:
    refused(folder, "queue", "put", URL, *words, says=says)


# Queues that cannot be opened

QUEUE_COMMANDS = [
    ["queue", "put", "{}", "greet", "1"],
    ["queue", "stats", "{}"],
    ["queue", "list", "{}"],
    ["queue", "show", "{}", "1"],
    ["queue", "list", "{}", "--state", "dead"],
    ["queue", "retry", "{}", "--all"],
    ["queue", "drop", "{}", "1"],
]
URLS = {
    "jobs.db": ("is not a queue URL", "sqlite:///jobs.db"),
    "": ("is not a queue URL",),
    "sqlit:///jobs.db": ("no queue has the scheme 'sqlit'", "sqlite"),
    "sqlite://jobs.db": ("does not name a file", "sqlite:///relative.db"),
    "sqlite:///": ("does not name a file",),
    "sqlite:///jobs.db?qeue=mail": ("do not take 'qeue'", "did you mean 'queue'?"),
    "sqlite:///jobs.db?queue=": ("queue = ''",),
    "sqlite:///jobs.db?watch=often": ("watch = 'often' is not a duration",),
    "sqlite:///jobs.db?synchronous=maybe": ("synchronous = 'maybe'", "full, normal, off"),
    "sqlite:///jobs.db?max_payload_bytes=big": ("max_payload_bytes = 'big'",),
    "sqlite:///no/such/jobs.db": ("no/such",),
    "sqlite:///text": ("text: file is not a database", "correct the path in the URL"),
    "sqlite:///folder": ("folder is a folder", "name a file in it"),
    "memory://": ("is a queue in this process's memory", "sqlite:///jobs.db"),
}


def at(words: list[str], url: str) -> list[str]:
    return [url if word == "{}" else word for word in words]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("words", QUEUE_COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_a_queue_that_cannot_be_opened(words: list[str], url: str, folder: Path) -> None:
    (folder / "text").write_text("This is a letter, not a database.\n" * 100)
    (folder / "folder").mkdir()
    refused(folder, *at(words, url), says=URLS[url])


@pytest.mark.parametrize("words", QUEUE_COMMANDS[1:], ids=lambda words: "-".join(words[:2]))
def test_only_a_put_makes_a_database(words: list[str], folder: Path) -> None:
    says = ("there is no database at jobs.db", "check the path")
    refused(folder, *at(words, URL), says=says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["queue", "list", URL, "--state", "redy"], ("state = 'redy'", "ready, delayed")),
        (["queue", "list", URL, "--limit", "0"], ("limit = 0 must be from 1 to 1000",)),
        (["queue", "list", URL, "--state", "dead", "--limit", "5000"], ("limit = 5000",)),
        (["queue", "retry", URL], ("give job ids, --all or a filter",)),
        (["queue", "drop", URL, "1", "--all"], ("give job ids, --all or a filter",)),
    ],
)
def test_a_query_that_makes_no_sense(words: list[str], says: tuple[str, ...], folder: Path) -> None:
    good("queue", "put", URL, "greet")
    refused(folder, *words, says=says)


# A script that imports everything, becomes somebody who may do less, and runs a command.
LESS = """
import os, sys, sqlite3, resource, encodings.idna, typer
from pollwise.cli import main
from pollwise.cli.app import app
assert all(typer.main.get_command(app).commands.values())
import pollwise.queues.sqlite.queue, pollwise.storage.sql
pollwise.storage.sql.statements("pollwise.queues.sqlite")
pollwise.storage.sql.migrations("pollwise.queues.sqlite")
{less}
main()
"""


def run_with_less(less: str, *words: str, stdin: str = "") -> Result:
    run = subprocess.run(
        [sys.executable, "-c", LESS.format(less=less), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return Result(run.returncode, run.stdout, run.stderr)


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that others may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="pollwise-test-") as name:
        Path(name).chmod(0o755)
        monkeypatch.chdir(name)
        yield Path(name)


@pytest.mark.parametrize(
    "words", [QUEUE_COMMANDS[0], ["queue", "cancel", "{}", "1"]], ids=["put", "cancel"]
)
def test_a_database_that_may_not_be_written(words: list[str], open_folder: Path) -> None:
    good("queue", "put", URL, "greet")
    Path("jobs.db").chmod(0o444)
    # Root is held back by no mode.
    less = f"os.setgid({NOBODY}); os.setuid({NOBODY})" if os.geteuid() == 0 else ""
    before = files(open_folder)
    check_refused(run_with_less(less, *at(words, URL)), "jobs.db", "may not write")
    assert files(open_folder) == before


@pytest.mark.parametrize(
    "words",
    [["stats"], ["stats", "--by-kind"], ["list"], ["show", "1"], ["workers"]],
    ids=" ".join,
)
def test_a_read_only_copy_can_be_looked_at(words: list[str], open_folder: Path) -> None:
    good("queue", "put", URL, "greet")
    Path("jobs.db").chmod(0o444)
    open_folder.chmod(0o555)
    less = f"os.setgid({NOBODY}); os.setuid({NOBODY})" if os.geteuid() == 0 else ""
    before = files(open_folder)
    command, *rest = words
    result = run_with_less(less, "queue", command, URL, *rest)
    assert result.code == 0, result.err
    assert files(open_folder) == before


def test_a_disk_that_is_full(folder: Path) -> None:
    """No file may grow any more, which is how a full disk looks to SQLite."""
    good("queue", "put", URL, "greet")
    before = files(folder)
    size = Path("jobs.db").stat().st_size
    less = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    )
    payload = '"' + "x" * 200_000 + '"'
    result = run_with_less(less, "queue", "put", URL, "greet", "-", stdin=payload)
    check_refused(result, "jobs.db", "disk")
    assert good("queue", "stats", URL, "--json").json()["ready"] == 1
    assert set(files(folder)) == set(before)


# Workers that cannot run

MODULES = {
    "shop": WORKER + "number = 3\n",
    "nothing": "",
    "idle": 'import pollwise\nworker = pollwise.Worker("sqlite:///jobs.db")\n',
    "raising": "def f():\n    raise RuntimeError('boom [red]\\x1b[31m')\nf()\n",
    "leaving": "import sys\nsys.exit(3)\n",
    "needing": "import no_such_dependency\n",
    "misspelt": "def f(:\n",
    "wrong": WORKER.replace("(job)", "(job, more)"),
    "generator": WORKER.replace("async def greet(job): ...", "def greet(job): yield"),
    "elsewhere": WORKER.replace("sqlite:///jobs.db", "nosuch://jobs"),
    "eager": WORKER + "\nimport asyncio\nasyncio.run(worker.run())\n",
    "twice": WORKER + WORKER.split("\n\n")[1],
}
TARGETS = {
    "shop": ("'shop' is not module:worker", "write for example shop.jobs:worker"),
    "": ("is not module:worker",),
    ":worker": ("is not module:worker",),
    "shop:": ("is not module:worker",),
    "shop:worker:more": ("is not module:worker",),
    ".shop:worker": ("is not module:worker",),
    "shop..more:worker": ("is not module:worker",),
    "shop worker:worker": ("is not module:worker",),
    "shop.py:worker": ("is not module:worker", "write shop:worker"),
    "./shop.py:worker": ("is not module:worker", "write shop:worker"),
    "app/jobs.py": ("is not module:worker", "write app.jobs:worker"),
    "no_such:worker": ("cannot import 'no_such'", "No module named 'no_such'", "PYTHONPATH"),
    "shop.more:worker": ("cannot import 'shop.more'", "'shop' is not a package"),
    "needing:worker": ("No module named 'no_such_dependency'", "needing.py:1"),
    "misspelt:worker": ("raised SyntaxError", "misspelt.py, line 1"),
    "raising:worker": (r"RuntimeError: boom [red]\x1b[31m", "raising.py:2"),
    "leaving:worker": ("ended the program", "leaving.py:2", '`if __name__ == "__main__":`'),
    "wrong:worker": ("greet(job, more)", "Write it as `def greet(job): ...`", "wrong.py:"),
    "generator:worker": ("greet of kind 'greet' is a generator",),
    "elsewhere:worker": ("no queue has the scheme 'nosuch'", "elsewhere.py:3"),
    "twice:worker": ("kind 'greet' already has a handler: greet",),
    "eager:worker": ("runs the worker itself", '`if __name__ == "__main__":`', "eager.py:"),
    "shop:worcer": ("'shop:worcer' does not exist", "write shop:worker"),
    "shop:number": ("'shop:number' is of type int", "write shop:worker"),
    "nothing:worker": ("'nothing:worker' does not exist", "create one"),
    "idle:worker": ("'idle:worker' has no task or handler", "@worker.task"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("processes", ["1", "3"])
def test_a_worker_that_cannot_run(target: str, processes: str, folder: Path) -> None:
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    refused(folder, "worker", target, "--processes", processes, says=TARGETS[target])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--strategy", "adaptiv"], ("'adaptiv' (argument)", "did you mean 'adaptive'?")),
        (["--concurrency", "0"], ("worker.concurrency = 0 (argument)", "from 1 to 1000")),
        (["--log-format", "xml"], ("worker.log_format = 'xml'", "'json'")),
        (["--log-level", "loud"], ("worker.log_level = 'loud'", "'debug'")),
        (["--metrics-port", "70000"], ("worker.metrics_port = 70000", "to 65535")),
        (["--metrics-port", "65535", "--processes", "2"], ("65536", "lower --metrics-port")),
        (["--price", "s3-list"], ("--price s3-list", "needs --metrics-port")),
        (["--price", "s3-lst"], ("price 's3-lst'", "did you mean 's3-list'?")),
        (["--price", "s3-lst", "--metrics-port", "0"], ("did you mean 's3-list'?",)),
        (["--set", "worker.lease"], ("'worker.lease' has no value", "worker.lease=30s")),
        (["--set", "worker.leese=1s"], ("worker.leese = '1s'", "did you mean worker.lease?")),
        (["--set", "worker.lease=1x"], ("worker.lease = '1x' (argument)",)),
        (["--set", "worker.polling.min_interval=10s"], ("min_interval", "max_interval")),
    ],
)
def test_options_that_make_no_sense(words: list[str], says: tuple[str, ...], folder: Path) -> None:
    (folder / "shop.py").write_text(WORKER)
    refused(folder, "worker", "shop:worker", *words, says=says)


@pytest.mark.parametrize("url", ["sqlite:///text", "sqlite:///no/such.db"])
def test_a_queue_that_cannot_be_worked(url: str, folder: Path) -> None:
    (folder / "shop.py").write_text(WORKER)
    (folder / "text").write_text("no database\n" * 100)
    before = files(folder)
    words = ["--set", f"worker.queue={url}", "--log-level", "error"]
    check_refused(pollwise("worker", "shop:worker", *words), "correct the path")
    after = files(folder)
    assert {name: after[name] for name in before} == before


# Settings

SETTINGS_COMMANDS = [["config", "show"], ["config", "check"], ["worker", "shop:worker"]]
TOML: dict[str, tuple[str, ...]] = {
    "[worker]\nconcurency = 3": (
        "worker.concurency = 3 (pollwise.toml)", "did you mean worker.concurrency?",
    ),
    "[worker]\nlease = '1x'": ("worker.lease = '1x' (pollwise.toml)", "duration"),
    "[worker]\nconcurrency = 0": ("worker.concurrency = 0 (pollwise.toml)", "from 1 to 1000"),
    "[worker.polling]\nstrategy = 'ewna'": ("'ewna' (pollwise.toml)", "did you mean 'ewma'?"),
    "[worker.polling]\nmin_interval = '9s'": (
        "min_interval = '9s' (pollwise.toml)", "max_interval",
    ),
    "[worker.polling]\nbackoff_multiplier = 1": ("backoff_multiplier = 1 (pollwise.toml)",),
    "[wroker]\nlease = '1s'": ("wroker", "worker"),
    "worker = [": ("pollwise.toml",),
}  # fmt: skip


@pytest.mark.parametrize("text", TOML)
@pytest.mark.parametrize("words", SETTINGS_COMMANDS, ids=lambda words: "-".join(words))
def test_bad_settings_in_the_file(words: list[str], text: str, folder: Path) -> None:
    (folder / "shop.py").write_text(WORKER)
    (folder / "pollwise.toml").write_text(text)
    refused(folder, *words, says=TOML[text])


@pytest.mark.parametrize("words", SETTINGS_COMMANDS, ids=lambda words: "-".join(words))
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("POLLWISE_WORKER_LEESE", "1s", ("POLLWISE_WORKER_LEESE = '1s'", "POLLWISE_WORKER_LEASE?")),
        ("POLLWISE_WORKER_LEASE", "1x", ("worker.lease = '1x'", "POLLWISE_WORKER_LEASE")),
        (
            "POLLWISE_POLLING_STRATEGY",
            "none",
            ("'none'", "POLLWISE_POLLING_STRATEGY", "'adaptive'"),
        ),
        ("POLLWISE_CONFIG", "nowhere.toml", ("there is no file nowhere.toml", "POLLWISE_CONFIG")),
    ],
)
def test_bad_settings_in_the_environment(
    words: list[str],
    name: str,
    value: str,
    says: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "shop.py").write_text(WORKER)
    monkeypatch.setenv(name, value)
    refused(folder, *words, says=says)


@pytest.mark.parametrize(
    ("words", "old"),
    [
        (["worker", "nowhere:worker"], "QO_POLLING_MAX_INTERVAL_MS"),
        (["outbox", "run", "nowhere:outbox"], "NAMASTACK_OUTBOX_POLLING_BATCH_SIZE"),
        (["fleet", "run", "--file", "nowhere.toml"], "ADAPTIVE_POLLING_MAX_INTERVAL"),
        (["serve", "nowhere://x"], "HEARTBEAT_TIMEOUT_SECONDS"),
        (["agent", "nowhere://x", "--", "true"], "POLL_INTERVAL_SECONDS"),
        (["queue", "put", "nowhere://x", "a"], ""),
    ],
)
@pytest.mark.filterwarnings("always")
def test_variables_of_other_projects_are_told_once(
    words: list[str], old: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QO_POLLING_MAX_INTERVAL_MS", "ADAPTIVE_POLLING_MAX_INTERVAL", old or "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, "10"))
    told = pollwise(*words).err
    assert told.count("has no effect here") == told.count(f"{old} has no effect here") == bool(old)


def test_all_wrong_settings_are_reported_at_once(folder: Path) -> None:
    (folder / "pollwise.toml").write_text("[worker]\nlease = '1x'\nconcurrency = -1\n")
    check_refused(
        pollwise("config", "check"), "2 settings are wrong:\n- ", "\n- worker.concurrency = -1"
    )


# The demo


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--strategy", "adaptiv"], ("strategy = 'adaptiv'", "did you mean 'adaptive'?")),
        (["--price", "sqz"], ("price 'sqz'", "did you mean 'sqs'?")),
        (["--price", "0.005"], ("0.005/1000", "s3-list, s3-get, sqs")),
    ],
)
def test_a_demo_that_makes_no_sense(words: list[str], says: tuple[str, ...], folder: Path) -> None:
    refused(folder, "demo", *words, says=says)


@pytest.mark.parametrize("seconds", ["0", "-1", "1e9", "inf", "soon"])
def test_a_demo_that_never_ends_or_begins(seconds: str) -> None:
    result = pollwise("demo", f"--seconds={seconds}")
    assert (result.code, result.out) == (2, "")
    assert "Invalid value for '--seconds'" in result.err


# Secrets in words that stand where they should not

SECRET_URL = "postgresql://app:hunter2@db/shop"
CONNINFO = "host=db user=app password='hunter2 hunter2'"


@pytest.mark.parametrize(
    "words",
    [
        ("outbox", "run", SECRET_URL),
        ("worker", SECRET_URL),
        ("worker", "shop:worker", "--set", SECRET_URL),
        ("outbox", "stats", CONNINFO),
        ("queue", "migrate", CONNINFO),
        ("queue", "migrate", "host=db password = hunter2&hunter2"),
        ("fleet", "migrate", "--store", CONNINFO),
        ("fleet", "migrate", SECRET_URL),
        ("doctor", SECRET_URL, SECRET_URL),
        ("doctor", "sqlite:///a.db", CONNINFO),
        ("outbox", "stats", "a", SECRET_URL, CONNINFO),
        ("queue", SECRET_URL),
        (SECRET_URL,),
        ("queue", "list", "a", f"--limit={SECRET_URL}"),
        ("queue", "list", "sqlite:///a.db", "--state", SECRET_URL),
        ("outbox", "prune", "sqlite:///a.db", f"--keep={SECRET_URL}"),
        ("fleet", "run", "--set", SECRET_URL),
        ("queue", "put", "sqlite:///a.db", "kind", SECRET_URL),
    ],
    ids=lambda words: " ".join(words),
)
def test_no_secret_of_a_misplaced_word_is_repeated(words: tuple[str, ...]) -> None:
    result = pollwise(*words)
    assert result.code == 2, result
    assert "hunter2" not in result.out + result.err
    if "--limit" not in words[-1]:
        assert "***" in result.err


def test_the_error_for_an_extra_url_names_its_option() -> None:
    result = pollwise("fleet", "migrate", SECRET_URL)
    assert "(postgresql://app:***@db/shop)" in result.err
    assert "--store URL" in result.err
    assert "--store" not in pollwise("doctor", "a", "b").err


SPECIAL = [
    f"{scheme}{password}@{end}"
    for scheme, end in (("postgresql://app:", "db/x"), ("redis://:", "db/0"), ("http://u:", "h"))
    for password in ("hun[ter2", "hun]ter2", "hun?ter2", "1?hunter2", "hun?a=ter2", "hun?ter2&a=b")
]


@pytest.mark.parametrize("url", SPECIAL)
@pytest.mark.parametrize(
    "words", ["queue stats", "outbox stats", "web", "serve", "doctor", "serve token list --store"]
)
def test_special_characters_in_a_password_are_neither_shown_nor_a_traceback(
    words: str, url: str
) -> None:
    told = pollwise(*words.split(), url)
    assert told.code in (1, 2)
    assert "Traceback" not in told.err
    assert "ter2" not in told.out + told.err
