"""Parts of other packages: the example package, installed, is found and used everywhere."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import pollwise
from pollwise import plugins
from pollwise.errors import ConfigError
from pollwise.fleet import Fleet, FleetRunOptions
from pollwise.fleet.api.description import description
from pollwise.fleet.definitions.stored import StoredRules, StoredTables
from pollwise.fleet.file import read_text
from pollwise.fleet.probes import facts_of
from pollwise.lab.policies import CostTerms, label, parse_one, space
from pollwise.outbox import NewRecord, Outbox
from pollwise.outbox.publishers import open_publisher
from pollwise.runtime.events import TargetPolled
from pollwise.settings import load, polling_table, strategy_named
from pollwise.sources import open_source
from tests.cli.console import Command, Result, good
from tests.cli.console import pollwise as command
from tests.support.daemons import PATIENCE, wait_until
from tests.support.forked import Forked
from tests.support.kit import Seen

EXAMPLE = Path(__file__).parent / "example_package"
DOCS = Path(__file__).parent.parent / "docs" / "extend"
TERMS = CostTerms(1e-6, 1e-6)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the example package, as an installer unpacks it."""
    from hatchling.build import build_wheel

    root = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, root / "project")
    before = Path.cwd()
    os.chdir(root / "project")
    try:
        name = build_wheel(str(root))
    finally:
        os.chdir(before)
    with zipfile.ZipFile(root / name) as wheel:
        wheel.extractall(root / "site")
    return root / "site"


@pytest.fixture
def fresh() -> Iterator[None]:
    """What is installed is read again, before the test and after it."""
    plugins.forget()
    yield
    plugins.forget()
    for name in [each for each in sys.modules if each.startswith(("pollwise_example", "added_"))]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> Path:
    """The current folder, in which packages can be installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def example(unpacked: Path, folder: Path) -> Path:
    """The current folder, with the example package installed in it."""
    shutil.copytree(unpacked, folder, dirs_exist_ok=True)
    return folder


def install(folder: Path, name: str, entry_points: str, code: str = "", version: str = "1") -> None:
    """A distribution with a module `added_NAME`."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / f"added_{name}.py").write_text(code)
    plugins.forget()


def found(result: Result) -> dict[tuple[str, str, str], Any]:
    """The plugins in the findings of a doctor."""
    every = [each for each in result.json() if each["check"] == "plugin"]
    return {(each["group"], each["name"], each["distribution"]): each for each in every}


# The example


def test_the_example_keeps_the_contracts(example: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", example / "tests")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests"]
    with closing(Forked(words)) as run:
        out, err = run.communicate(PATIENCE)
        assert run.poll() == 0, f"{out}{err}"
    assert re.search(r"^\d+ passed, \d+ skipped", out, re.MULTILINE), out


def blocks() -> dict[str, str]:
    """The titled blocks of the pages: each title and its text."""
    fence = re.compile(r'^```\w+ title="([^"\n]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
    pages = [page.read_text("utf-8") for page in DOCS.glob("*.md")]
    return {title: text for page in pages for title, text in fence.findall(page)}


def test_the_pages_show_the_example(example: Path) -> None:
    """Every file of the package is on a page as it is, and what else pages show is right."""
    shown = blocks()
    (example / "pollwise.toml").write_text(shown.pop("pollwise.toml"))
    assert load(environ={}).worker.polling.name == "patient"
    assert read_text(shown.pop("fleet.toml")).targets[0].probe == "disk"
    assert shown == {
        str(path.relative_to(EXAMPLE)): path.read_text("utf-8")
        for path in EXAMPLE.rglob("*.*")
        if path.suffix in (".py", ".toml") and path.name not in ("__init__.py", "conftest.py")
    }


def test_the_doctor_lists_it(example: Path) -> None:
    lines = found(good("doctor", "--json"))
    assert {(group, name) for group, name, _ in lines} == {
        ("pollwise.strategies", "patient"),
        ("pollwise.queues", "room"),
        ("pollwise.probes", "disk"),
        ("pollwise.publishers", "journal"),
        ("pollwise.sources", "log"),
    }
    assert lines["pollwise.strategies", "patient", "pollwise-example"] == {
        "check": "plugin",
        "level": "ok",
        "says": "pollwise.strategies patient = pollwise_example.strategy:Patient, by "
        "pollwise-example 1.0",
        "group": "pollwise.strategies",
        "name": "patient",
        "value": "pollwise_example.strategy:Patient",
        "distribution": "pollwise-example",
        "version": "1.0",
        "loads": True,
    }
    assert "ok   plugin  pollwise.queues room = " in good("doctor").out


def test_the_strategy_in_settings(example: Path) -> None:
    file = example / "pollwise.toml"
    file.write_text('[worker.polling]\nstrategy = "patient"\npatience = "2m"\n')
    environ = {"POLLWISE_POLLING_MAX_INTERVAL": "5m", "POLLWISE_OUTBOX_POLLING_STRATEGY": "patient"}
    environ["POLLWISE_OUTBOX_POLLING_PATIENCE_MS"] = "1500"
    settings = load(environ=environ, overrides={"worker.polling.min_interval": "1s"})
    assert repr(settings.worker.polling) == (
        "Patient(min_interval=1.0, max_interval=300.0, patience=120.0)"
    )
    assert getattr(settings.outbox.polling, "patience", None) == 1.5
    rows = {row.key: (row.value, row.origin) for row in settings.table()}
    assert rows["worker.polling.patience"] == ("2m", "pollwise.toml")
    assert strategy_named("PATIENT") == type(settings.worker.polling)()
    shown = good("config", "show").out
    assert "patient" in shown


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('strategy = "patient"\npatiance = 1', "is not a setting; did you mean .*patience?"),
        ('strategy = "patient"\npatience = "soon"', r"patience = 'soon' \(.*\) is not a duration"),
        ('strategy = "patient"\nmin_interval = "9m"', r"min_interval = '9m' \(.*\) is above"),
        ('strategy = "patent"', "must be one of .*'patient'; did you mean 'patient'?"),
    ],
)
def test_wrong_settings_of_the_strategy(example: Path, written: str, said: str) -> None:
    (example / "pollwise.toml").write_text(f"[worker.polling]\n{written}\n")
    with pytest.raises(ConfigError, match=said):
        load(environ={})


def test_a_parameter_needs_its_strategy(example: Path) -> None:
    with pytest.raises(ConfigError, match="belongs to strategy patient, but the strategy is adapt"):
        load(environ={"POLLWISE_POLLING_PATIENCE": "1m"})


def test_the_lab_compares_and_tunes_the_strategy(example: Path) -> None:
    arrivals = example / "arrivals.csv"
    arrivals.write_text("\n".join(["time", *(str(100 * n + m) for n in range(30) for m in (0, 3))]))
    both = "patient 1s 30s patience=10s,fixed 2s"
    report = good("lab", "compare", arrivals, "--strategies", both, "--json").json()
    assert [each["name"] for each in report["policies"]] == [
        "patient 1s to 30s patience=10s",
        "fixed 2s",
    ]
    words = ("--strategy", "patient", "--goal", "p95=20s", "--min-interval", "5s", "--json")
    tuned = good("lab", "tune", arrivals, *words).json()
    assert "patient" in json.dumps(tuned)


def test_a_policy_in_the_lab_can_be_read_again(example: Path) -> None:
    for text in ("patient", "patient 2s 9s", "patient max_interval=1h patience=5s"):
        made = parse_one(text, TERMS)
        assert parse_one(label(made), TERMS) == made
    for text, said in (
        ("patient patiance=1", "patient has no 'patiance'.*did you mean 'patience'"),
        ("patient patience=x", "patience = 'x' in .* is not a duration"),
        ("patient 1s 2s 3s", "is too much; write patient min_interval max_interval key=value"),
        ("patience", "strategy 'patience' is unknown; did you mean 'patient'?"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_one(text, TERMS)


ODD = """
from dataclasses import dataclass
from pollwise.strategies import Fixed, Strategy

@dataclass(frozen=True, init=False, slots=True)
class Odd(Strategy):
    step: float
    name = "odd"
    min_interval = max_interval = property(lambda self: self.step)

    def __init__(self, step: float) -> None:
        if step > 9:
            raise ValueError("a step has at most 9 seconds")
        self._set(step=float(step))

    def pacer(self):
        return Fixed(self.step).pacer()
"""


def test_a_strategy_with_other_settings(folder: Path) -> None:
    install(folder, "odd", "[pollwise.strategies]\nodd = added_odd:Odd\n", ODD)

    def polling(**given: object) -> Any:
        over = {f"worker.polling.{key}": each for key, each in {"strategy": "odd", **given}.items()}
        return load(environ={}, overrides=over).worker.polling

    made = polling(step=3)
    assert polling_table(made) == '[worker.polling]\nstrategy = "odd"\nstep = 3.0\n'
    assert label(made) == "odd step=3"
    assert parse_one("odd step=3", TERMS) == made
    for use, said in (
        (polling, "missing 1 required positional argument: 'step'"),
        (lambda: polling(step=10), "a step has at most 9 seconds"),
        (lambda: parse_one("odd step=10", TERMS), "'odd step=10': a step has at most 9 seconds"),
        (lambda: parse_one("odd 3", TERMS), "is too much; write odd key=value"),
        (lambda: space("odd", 1, 2, TERMS), "'odd' has no min_interval and max_interval to vary"),
    ):
        with pytest.raises(ConfigError, match=said):
            use()


def test_a_worker_on_the_queue(example: Path) -> None:
    (example / "added_jobs.py").write_text(
        "import pollwise\n"
        'worker = pollwise.Worker("room://kitchen")\n'
        "@worker.task\n"
        "def greet(name):\n"
        "    print('hello', name)\n"
        "    if name == 'Ada':\n"
        "        greet.put_sync('Grace')\n"
    )

    async def put() -> None:
        async with pollwise.open("room://kitchen") as queue:
            await queue.put([pollwise.NewJob("greet", {"name": "Ada"})])

    asyncio.run(put())
    out = good("worker", "added_jobs:worker", "--once").out
    assert "hello Ada" in out
    assert "hello Grace" in out
    result = command("queue", "stats", "room://")
    assert result.code != 0
    assert "does not name a room; write room://kitchen" in result.err
    assert "known: memory, sqlite, " in (error := command("queue", "stats", "rooms://x").err)
    assert "room" in error


FLEET = """
[[target]]
name = "root"
type = "disk"
path = "/"
low = "1kb"
interval = "10ms"
alerts = [{ when = "free_mb < 1", to = ["ops"] }]

[channel.ops]
type = "apprise"
url = "json://127.0.0.1"
"""


def test_a_fleet_with_the_probe(example: Path) -> None:
    file = read_text(FLEET)
    (target,) = file.targets
    seen, done = Seen(), asyncio.Event()
    assert "free_mb" in (facts_of("disk") or {})

    async def main() -> None:
        fleet = Fleet(FleetRunOptions(signals=False), events=seen.events, alerts=file.alerts)
        fleet.add(target)
        seen.events.subscribe(lambda _: done.set(), TargetPolled)
        running = asyncio.ensure_future(fleet.run())
        await done.wait()
        fleet.stop()
        await running
        assert fleet.target("root").facts["free_mb"] > 0

    asyncio.run(main())
    for before, after, said in (
        ('path = "/"', "", "path is missing"),
        ('low = "1kb"', 'lo = "1kb"', "lo is not an option; did you mean low"),
        ("free_mb", "free_gb", "free_gb"),
        ('type = "disk"', 'type = "disc"', "'disc' is not a probe type; did you mean disk?"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            read_text(FLEET.replace(before, after))


def test_a_target_of_the_api_cannot_use_the_probe_unless_it_may_run_code(example: Path) -> None:
    table = {"name": "root", "type": "disk", "path": "/"}
    with pytest.raises(ConfigError, match="type = 'disk' can run code on the polling machine"):
        StoredTables(StoredRules(), {}).read(table)
    assert not [name for name in sys.modules if name.startswith("pollwise_example")]
    assert StoredTables(StoredRules(may_run=True), {}).read(table).probe == "disk"
    assert (
        "disk" in description()["components"]["schemas"]["Definition"]["properties"]["type"]["enum"]
    )


def test_a_relay_with_the_publisher(example: Path) -> None:
    url, journal = f"sqlite:///{example}/shop.db", example / "journal.jsonl"

    async def put() -> None:
        outbox = Outbox(url)
        await outbox.store.migrate()
        await outbox.store.put(NewRecord(kind, 17, "k") for kind in ("order.placed", "invoice"))
        await outbox.close()

    asyncio.run(put())
    to = f"order.*=journal://{journal}?name=orders&source=/shop&mode=binary"
    with Command("outbox", "run", url, "--publish", to) as relay:
        wait_until(lambda: journal.exists() and journal.read_text().endswith("\n"), "a record")
        assert relay.stopped() == 0, relay.err.all
    (line,) = map(json.loads, journal.read_text().splitlines())
    assert (line["id"].partition("-")[0], line["body"]) == ("default", "17")


def test_the_source_by_its_url(example: Path) -> None:
    log, cursor = example / "app.log", "sqlite:///cursors.db"
    log.write_text("one\ntwo\nhal")

    async def lines(options: str = "") -> list[str]:
        async with open_source(f"log://{log}{options}", cursor=cursor) as source:
            return list((await source()).items)

    assert asyncio.run(lines("?limit=1")) == ["one"]
    assert asyncio.run(lines()) == ["two"]
    with pytest.raises(ConfigError, match="source URLs of log do not take 'limt'; did you mean 'l"):
        asyncio.run(lines("?limt=1"))


# What is wrong with a package


def test_a_broken_package_is_reported_and_breaks_no_other(example: Path) -> None:
    install(
        example,
        "broken",
        "[pollwise.strategies]\nlazy = added_broken:Lazy\n[pollwise.probes]\nnone = added_none:x\n",
        "raise RuntimeError('no licence')",
    )
    lines = found(result := command("doctor", "--json"))
    assert result.code == 1
    lazy = lines["pollwise.strategies", "lazy", "broken"]
    assert (lazy["level"], lazy["loads"]) == ("bad", False)
    assert lazy["says"] == (
        "the strategy 'lazy' of broken 1 cannot be used: importing added_broken:Lazy raised "
        "RuntimeError: no licence. Repair or uninstall broken."
    )
    assert lines["pollwise.strategies", "patient", "pollwise-example"]["level"] == "ok"
    assert strategy_named("patient").name == "patient"
    with pytest.raises(ConfigError, match="'lazy' of broken 1 cannot be used: importing added_br"):
        load(environ={}, overrides={"worker.polling.strategy": "lazy"})
    with pytest.raises(ConfigError, match=r"type = 'none': .*of broken 1 cannot be used"):
        read_text('[[target]]\nname = "x"\ntype = "none"\n')


def test_a_built_in_name_is_never_replaced(folder: Path) -> None:
    install(
        folder,
        "evil",
        "[pollwise.strategies]\nfixed = added_evil:x\n[pollwise.queues]\nmemory = added_evil:x\n",
        "raise AssertionError('it was imported')",
    )
    assert strategy_named("fixed") == pollwise.Fixed()
    asyncio.run(pollwise.open("memory://").close())
    level, says = (
        (each["level"], each["says"]) for each in found(good("doctor", "--json")).values()
    ).__next__()
    assert level == "note"
    assert (
        f"evil 1 adds the queue scheme 'memory', which pollwise {pollwise.__version__} has" in says
    )
    with pytest.warns(UserWarning, match="evil 1 adds the strategy 'fixed', which pollwise"):
        with pytest.raises(ConfigError, match="must be one of"):
            strategy_named("other")


def test_two_packages_with_one_name(folder: Path) -> None:
    for name in ("one", "two"):
        install(folder, name, f"[pollwise.queues]\nmine = added_{name}:opened\n", "opened = len")
    with pytest.raises(ConfigError, match="2 packages add the queue scheme 'mine': one 1 and two"):
        pollwise.open("mine://x")
    assert {each["level"] for each in found(command("doctor", "--json")).values()} == {"bad"}


GOOD = "from pollwise.strategies import *\nclass Mine(Adaptive):\n    name = 'mine'\n"


@pytest.mark.parametrize(
    ("group", "code", "said"),
    [
        ("strategies", "Mine = 3", "is not a subclass of pollwise.strategies.Strategy"),
        ("strategies", GOOD.replace("'mine'", "'my'"), "has name = 'my', and its entry point 'mi"),
        ("strategies", GOOD.replace("Adaptive", "Strategy"), "lacks max_interval, min_interval, p"),
        (
            "strategies",
            f"{GOOD}    def __init__(self, strategy: str = 'x') -> None: ...",
            "has a parameter that is called strategy",
        ),
        (
            "strategies",
            f"{GOOD}    def __init__(self, x: float = 'much') -> None: ...",
            "has parameters that settings cannot read: ValueError",
        ),
        ("queues", "Mine = 3", "is not a function that returns a Queue for a StoreUrl"),
        ("probes", "Mine = 3", "is not a function that makes a probe of a Target"),
        ("publishers", "Mine = 3", "is not a function of a PublisherUrl"),
        ("sources", "Mine = 3", "is not a function of a SourceUrl"),
        ("queues", "", "AttributeError: module 'added_odd' has no attribute 'Mine'"),
        ("strategy", GOOD, "no such group; did you mean 'pollwise.strategies'?"),
    ],
)
def test_the_doctor_says_what_is_wrong(folder: Path, group: str, code: str, said: str) -> None:
    install(folder, "odd", f"[pollwise.{group}]\nmine = added_odd:Mine\n", code)
    (line,) = found(command("doctor", "--json")).values()
    assert said in line["says"]
    assert line["level"] == ("note" if group == "strategy" else "bad")


def test_a_name_that_is_no_scheme(folder: Path) -> None:
    install(folder, "odd", "[pollwise.queues]\nmy_queue = added_odd:len\n", "len = len")
    (line,) = found(command("doctor", "--json")).values()
    assert "has a name that is not a URL scheme" in line["says"]


@pytest.mark.parametrize(
    ("group", "use", "said"),
    [
        ("queues", lambda: pollwise.open("mine://x"), "opens mine:// returned 3, no Queue"),
        ("publishers", lambda: open_publisher("mine://x"), "mine:// returned int, no Publisher"),
        ("sources", lambda: open_source("mine://x"), "mine:// returned int, no Source"),
        (
            "probes",
            lambda: read_text('[[target]]\nname = "x"\ntype = "mine"\n'),
            "making a probe of the type 'mine' raised TypeError: is not a function",
        ),
    ],
)
def test_what_a_function_returns_is_checked(
    folder: Path, group: str, use: Callable[[], object], said: str
) -> None:
    code = "def opened(given):\n    return 3\n"
    install(folder, "odd", f"[pollwise.{group}]\nmine = added_odd:opened\n", code)
    with pytest.raises(ConfigError, match=re.escape(said)):
        use()


def test_entry_points_that_cannot_be_read_are_ignored(example: Path) -> None:
    install(example, "torn", "[pollwise.queues]\nno equals sign\n")
    install(example, "bare", "[pollwise.queues]\nbare = added_bare:x\n")
    (example / "bare-1.dist-info" / "METADATA").write_text("")
    install(example, "latin", "")
    (example / "latin-1.dist-info" / "entry_points.txt").write_bytes(b"[x]\nb\xe4r = m:x\n")
    plugins.forget()
    with pytest.warns(UserWarning, match="cannot be read and are ignored") as seen:
        assert strategy_named("patient").name == "patient"
    said = sorted(str(each.message).partition(" cannot")[0] for each in seen)
    unnamed = "the entry points of an installed package"
    assert said == [unnamed, unnamed, "the entry points of torn 1"]


def test_an_older_version_further_along_the_path_is_not_used(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    install(old, "pollwise-example", "[pollwise.strategies]\nold = added_x:Old\n", version="0.9")
    monkeypatch.setattr(sys, "path", [*sys.path, str(old)])
    plugins.forget()
    assert {each.version for each in plugins.installed()} == {"1.0"}


def test_nothing_is_read_for_what_is_built_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading() -> Any:
        raise AssertionError("the installed packages were read")

    (folder / "pollwise.toml").write_text(
        '[worker.polling]\nstrategy = "fixed"\ninterval = "1s"\n[outbox.polling]\nhold = 0\n'
    )
    plugins.forget()
    monkeypatch.setattr(importlib.metadata, "distributions", reading)
    load(environ={"POLLWISE_FLEET_POLLING_MAX_INTERVAL_MS": "90000"})
    asyncio.run(pollwise.open("memory://").close())
    open_publisher("https://receiver.example/events")
    asyncio.run(open_source("folder:///inbox").close())
    assert read_text('[[target]]\nname = "x"\ntype = "tcp"\naddress = "a:1"\n').targets
    assert parse_one("adaptive 1s 2s", TERMS) == pollwise.Adaptive("1s", "2s")
