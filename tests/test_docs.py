"""The examples in README and docs run, and every command is documented."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import threading
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aio_pika
import nats
import pytest
import typer

from pollwise.cli.app import app
from pollwise.outbox.records import RECORD_STATES
from pollwise.runtime.jobs import STATES
from tests.cli.console import pollwise
from tests.support.brokers import Nats, RabbitMQ
from tests.support.clouds import BUCKET, CREDENTIALS, MiniStack
from tests.support.daemons import HOST, PATIENCE, free_port
from tests.support.forked import Forked
from tests.support.kafka import Kafka
from tests.support.servers import PgBouncer, Postgres, Redis

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)(?: title=\"([\w. ]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """The fenced blocks of a page: language, title, text."""
    return FENCE.findall(page.read_text("utf-8"))


Real = Callable[[str], str]


@pytest.fixture
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Real:
    """Replaces the servers that the examples name with real ones."""

    def translated(text: str) -> str:
        for example, server in SERVERS.items():
            if example in text:
                text = text.replace(example, server(request, tmp_path))
        return text

    return translated


def postgres_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """A database for the page, with its tables."""
    server: Postgres = request.getfixturevalue("postgres")
    name = f"docs_{zlib.crc32(str(folder).encode())}"
    if not server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]):
        url = server.create_database(name)
        run_command(f"pollwise queue migrate {url}")
        run_command(f"pollwise outbox migrate {url}")
    return server.dsn(name)


def driven_by(driver: str) -> Callable[[pytest.FixtureRequest, Path], str]:
    """The same database, as a URL for SQLAlchemy."""

    def url(request: pytest.FixtureRequest, folder: Path) -> str:
        return postgres_url(request, folder).replace("postgresql:", f"postgresql+{driver}:")

    return url


def pooler_url(request: pytest.FixtureRequest, folder: Path) -> str:
    database = postgres_url(request, folder).rpartition("/")[2]
    pooler: PgBouncer = request.getfixturevalue("pgbouncer")
    return pooler.dsn(database)


def redis_url(request: pytest.FixtureRequest, folder: Path) -> str:
    server: Redis = request.getfixturevalue("redis")
    return server.url()


def bucket_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """A bucket of a local server, with credentials in the environment."""
    server: MiniStack = request.getfixturevalue("ministack")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": server.endpoint}.items():
        patch.setenv(name, value)
    return f"s3://{BUCKET}/{folder.name}"


def clouds(request: pytest.FixtureRequest) -> Any:
    """A function that makes clients of MiniStack, which the examples use too."""
    from botocore.session import Session

    server: MiniStack = request.getfixturevalue("ministack")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": server.endpoint}.items():
        patch.setenv(name, value)
    return Session().create_client


def sqs_queue(request: pytest.FixtureRequest, folder: Path) -> str:
    clouds(request)("sqs").create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true"})
    return "orders.fifo"


def sns_topic(request: pytest.FixtureRequest, folder: Path) -> str:
    return str(clouds(request)("sns").create_topic(Name="orders")["TopicArn"])


def rabbitmq_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """A broker with the exchange `events` and a queue that receives every message."""
    server: RabbitMQ = request.getfixturevalue("rabbitmq")

    async def declare() -> None:
        async with await aio_pika.connect(server.url()) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("events", "topic")
            await (await channel.declare_queue("all")).bind(exchange, "#")

    asyncio.run(declare())
    return server.url()


def nats_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """A server with the stream ORDERS."""
    server: Nats = request.getfixturevalue("nats")

    async def declare() -> None:
        client = await nats.connect(server.url())
        await client.jetstream().add_stream(name="ORDERS", subjects=["order.>"])
        await client.close()

    asyncio.run(declare())
    return server.url()


def kafka_servers(request: pytest.FixtureRequest, folder: Path) -> str:
    server: Kafka = request.getfixturevalue("kafka")
    return server.servers


class OrdersApi(BaseHTTPRequestHandler):
    """An API with one page."""

    def do_GET(self) -> None:
        body = b'{"data": [{"id": 2}, {"id": 1}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def api_url(request: pytest.FixtureRequest, folder: Path) -> str:
    server = ThreadingHTTPServer((HOST, 0), OrdersApi)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    request.addfinalizer(end)
    return f"http://{HOST}:{server.server_port}/orders"


#: The servers that examples name, and how to start a real one.
SERVERS: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "postgresql://app@db/shop": postgres_url,
    "postgresql+psycopg://app@db/shop": driven_by("psycopg"),
    "postgresql+asyncpg://app@db/shop": driven_by("asyncpg"),
    "postgresql://app@pooler:6432/shop": pooler_url,
    "redis://cache/0": redis_url,
    "s3://jobs/pollwise": bucket_url,
    "amqp://app:secret@broker/": rabbitmq_url,
    "nats://app:secret@broker:4222": nats_url,
    "broker:9092": kafka_servers,
    "orders.fifo": sqs_queue,
    "arn:aws:sns:us-east-1:000000000000:orders": sns_topic,
    "https://api.example/orders": api_url,
    "8008": lambda *_: str(free_port()),
}


def with_language(language: str) -> list[Path]:
    return [page for page in PAGES if any(block[0] == language for block in blocks(page))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", with_language("python"), ids=name_of)
def test_the_python_of_a_page_runs_as_one_script(page: Path, folder: Path, real: Real) -> None:
    """All but the files that the commands of the page run."""
    python = [block for block in blocks(page) if block[0] == "python"]
    commands = "".join(text for language, _, text in blocks(page) if language == "console")
    for _, title, text in python:
        if title:  # others import it
            (folder / title).write_text(real(text), "utf-8")
    code = real(
        "\n".join(text for _, title, text in python if f"$ python {title}\n" not in commands)
    )
    code = BRIEFLY + code.replace("asyncio.run(worker.run())", "asyncio.run(briefly(worker))")
    script = folder / "page.py"
    script.write_text(code, "utf-8")
    with closing(Forked(["-W", "error", script])) as run:
        out, err = run.communicate(PATIENCE)
        assert run.poll() == 0, f"{name_of(page)}:\n{out}{err}"
        assert "Traceback" not in err, f"{name_of(page)}:\n{err}"


@pytest.mark.parametrize("page", with_language("console"), ids=name_of)
def test_the_commands_of_a_page_run_in_order(page: Path, folder: Path, real: Real) -> None:
    """A block with a title, such as "second terminal", runs on until the page ends."""
    (folder / "jobs.py").write_text(JOBS, "utf-8")
    for language, title, text in blocks(page):
        if title and language != "console":
            (folder / title).write_text(text, "utf-8")
    with ExitStack() as terminals:
        for language, title, text in blocks(page):
            if language == "console":
                for line in text.splitlines():
                    if line.startswith("$ ") and title:
                        terminals.enter_context(running(real(line[2:])))
                    elif line.startswith("$ "):
                        run_command(real(line[2:]))


#: What takes the place of `worker.run()` in an example, so that it ends.
BRIEFLY = """
async def briefly(worker):
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0.5)
    worker.stop()
    await running
"""
#: For pages that run a worker shown on another page.
JOBS = """
from pollwise import Worker
worker = Worker("sqlite:///jobs.db")
@worker.handle("greet")
async def greet(job): ...
"""


#: By command that runs on: what it logs when it has started.
STARTED = {"worker": "worker_started", "outbox run": "relay_started", "fleet run": "fleet_started"}


def command_of(line: str) -> list[str]:
    words = shlex.split(line)
    assert words[0] in ("pollwise", "python"), line
    if words[:2] == ["pollwise", "demo"]:
        words += ["--seconds=1", "--json"]
    for option in ("--metrics-port", "--health-port"):
        if option in words:
            words[words.index(option) + 1] = "0"
    return words[1:] if words[0] == "python" else ["-m", *words]


def started_by(line: str) -> str | None:
    """What a command logs when it has started; None if it ends by itself."""
    return next(
        (what for name, what in STARTED.items() if line.startswith(f"pollwise {name}")), None
    )


def run_command(line: str) -> None:
    """A command that ends by itself runs in this process, which need not import it each time."""
    if started_by(line):
        with running(line):
            return
    words = command_of(line)
    if words[0] == "-m":
        run = pollwise(*words[2:])
        assert run.code == 0, f"{line}\n{run.out}{run.err}"
        return
    with closing(Forked(words)) as script:
        out, err = script.communicate(PATIENCE)
        assert script.poll() == 0, f"{line}\n{out}{err}"


@contextmanager
def running(line: str) -> Iterator[None]:
    """A command that runs on, from its start to a SIGTERM, after which its exit code must be 0."""
    what = started_by(line)
    assert what, f"{line} does not run on"
    with closing(Forked(command_of(line))) as child:
        assert any(what in said for said in child.stderr), f"{line} ended before it started"
        yield
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(PATIENCE)
        assert child.poll() == 0, f"{line}\n{errors}"


def commands() -> list[str]:
    def inside(group: Any, before: str = "") -> list[str]:
        subcommands = getattr(group, "commands", None)
        if subcommands is None:
            return [before.strip()]
        return [
            each for name, sub in subcommands.items() for each in inside(sub, f"{before} {name}")
        ]

    return inside(typer.main.get_command(app))


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_reference(command: str) -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    assert f"## pollwise {command}\n" in page


#: A call of the command, up to the end of its line, code span or string.
CALL = re.compile(r"(?:^|[`\"'(]|\$ |: )pollwise ((?:--)?[a-z][^\n`\"')]*)", re.MULTILINE)
#: Where one command of a shell line ends: at a comment, a pipe, a redirection or `--`.
END_OF_CALL = re.compile(r"\s+(?:--\s|[|&;>#]).*|[.,;:]*$")
#: What may follow a group of commands instead of one of them: `pollwise fleet …`, `{command}`.
PLACEHOLDER = re.compile(r"…|\{")
#: They look like calls, and name a lock, a receiver of signals and two derived keys.
NOT_CALLS = {"migrate {schema}", "tables", "aes-gcm", "fingerprint"}


def wrong_calls(text: str) -> list[str]:
    """The calls of `pollwise` in a text whose command, or an option of it, does not exist."""
    calls = (END_OF_CALL.sub("", call) for call in CALL.findall(text))
    return [call for call in calls if not is_right(call.split()) and call not in NOT_CALLS]


@cache
def whole_command() -> Any:
    return typer.main.get_command(app)


def is_right(words: list[str]) -> bool:
    command = whole_command()
    for word in words:
        subcommands = getattr(command, "commands", {})
        if word.startswith("--"):
            options = {each for p in command.params for each in (*p.opts, *p.secondary_opts)}
            if word.partition("=")[0] not in options | {"--help"}:
                return False
        elif subcommands and PLACEHOLDER.match(word):
            return True
        elif subcommands:
            if command.name == "serve" and word not in subcommands:  # `pollwise serve URL`
                word = "run"
            if not all(each in subcommands for each in word.split("|")):
                return False
            command = subcommands[word.partition("|")[0]]
    return True


def test_every_command_that_is_named_exists() -> None:
    texts = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "src").rglob("*.py"))]
    wrong = [
        f"{name_of(path)}: pollwise {call}"
        for path in texts
        if path.name != "figures.md"  # where `pollwise` is the name of a row
        for call in wrong_calls(path.read_text("utf-8"))
    ]
    assert not wrong, "\n".join(["these commands or options do not exist:", *wrong])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`pollwise worker jobs:worker --processes 2`", []),
        ("`pollwise serve sqlite:///farm.db`, then", []),
        ("`pollwise serve token create worker --name x`", []),
        ("TOKEN=$(pollwise serve sqlite:///x.db --port 1)", []),
        ("`pollwise outbox stats|retry`", []),
        ("pollwise fleet top  # watch it --closely", []),
        ("pollwise agent --controller http://x -- make --fast", []),
        ("`pollwise lab …` and `pollwise fleet {what}`", []),
        ("from pollwise import Worker", []),
        ("`pollwise wroker jobs:worker`", ["wroker jobs:worker"]),
        ("$ pollwise outbox mend x", ["outbox mend x"]),
        ("pollwise outbox stats|mend", ["outbox stats|mend"]),
        ("pollwise worker jobs:worker --procesess=2", ["worker jobs:worker --procesess=2"]),
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, wrong: list[str]) -> None:
    assert wrong_calls(text) == wrong


def test_the_diagrams_show_every_state() -> None:
    for picture, states in (("job-states", STATES), ("record-states", RECORD_STATES)):
        drawn = (ROOT / "docs" / "assets" / f"{picture}.svg").read_text("utf-8")
        assert [state for state in states if f">{state}<" not in drawn] == [], picture


@pytest.mark.parametrize("page", [*PAGES, *(ROOT.glob("C*.md"))], ids=name_of)
def test_the_links_and_pictures_of_a_page_exist(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    targets = [each for each in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in each]
    missing = [each for each in targets if not (page.parent / each).exists()]
    assert not missing, f"{name_of(page)} links to files that do not exist: {missing}"


#: What install lines name besides the package: a checkout, a folder, and any error's extra.
NOT_PUBLISHED = {".", "PATH", "…"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_install_lines_work_in_any_folder_and_name_extras_that_exist(page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for named in re.findall(r"pip install ['\"]?([^\s'\"`)]+)", page.read_text("utf-8")):
        if named not in NOT_PUBLISHED:
            found = re.fullmatch(r"pollwise(?:\[([\w,]+)\])?", named)
            assert found, f"{name_of(page)}: pip install {named}"
            extras = set((found[1] or "").split(",")) - {""}
            assert extras <= project["optional-dependencies"].keys(), named


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs" / "assets").iterdir():
        assert picture.stat().st_size < 200_000, picture.name


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    named = re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE)
    found = [str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]]
    assert sorted(named) == sorted(found)
