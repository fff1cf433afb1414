"""Every setting changes something: no key is read and then ignored.

A parameter of a strategy must change the polls of a real worker and of a real relay. Every other
key must be read by the part that it is for.
"""

from __future__ import annotations

import ast
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pollwise
from pollwise.agent.options import AgentOptions
from pollwise.cli.running import _with_settings
from pollwise.controller.options import ControllerOptions, ServerOptions
from pollwise.errors import ConfigError
from pollwise.fleet import FleetRunOptions
from pollwise.outbox import NewRecord, Outbox, OutboxRunOptions
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PollFinished
from pollwise.runtime.jobs import NewJob
from pollwise.settings import STRATEGIES, Settings, documented_keys
from pollwise.settings.strategies import parameters
from pollwise.worker import Worker, WorkerRunOptions
from tests.outbox.relays import Bench
from tests.settings.folder import Folder
from tests.support.kit import Seen, virtually, working

#: Bursts, silence, single items, full batches, and a fall from those to single items again.
ARRIVALS = [
    *((at, 3) for at in (2, 3, 4, 5, 6)),
    *((at, 1) for at in range(70, 130, 7)),
    *((at, 8) for at in range(220, 250)),
    *((at, 1) for at in range(260, 420, 16)),
    (600, 5),
]
COSTS: dict[str, object] = {"poll_cost": 0.01, "wait_cost": 0.01}
#: For each parameter, another value than its default, and what else must be set with it.
OTHERS: dict[str, dict[str, tuple[object, dict[str, object]]]] = {
    "fixed": {"interval": ("700ms", {}), "hold": ("3s", {})},
    "adaptive": {
        "min_interval": ("300ms", {}),
        "max_interval": ("9s", {}),
        "backoff_multiplier": (3, {}),
        "hold": ("3s", {}),
    },
    "batch_fill": {
        "min_interval": ("2s", {}),
        "max_interval": ("20s", {}),
        "hold": ("3s", {}),
    },
    "ewma": {
        "idle_interval": ("25s", {"held": False}),
        "low_interval": ("16s", {"held": False}),
        "medium_interval": ("11s", {"held": False}),
        "high_interval": ("6s", {"held": False}),
        "very_high_interval": ("2s", {"held": False}),
        "alpha": (0.9, {"held": False}),
        "drop_after": (2, {"held": False}),
        "half_life": ("3s", {"held": False}),
        "held": (True, {}),
    },
    "freshness": {
        "base_interval": ("20s", {}),
        "min_interval": ("9s", {}),
        "max_interval": ("12s", {}),
    },
    "worth": {
        "poll_cost": (1.0, COSTS),
        "wait_cost": (1.0, COSTS),
        "polls_per_hour": (900, {"polls_per_hour": 90}),
        "polls_per_day": (21_600, {"polls_per_day": 2160}),
        "dollars_per_month": (90, {"dollars_per_month": 9, "price": 1e-5}),
        "price": (1e-4, {"dollars_per_month": 9, "price": 1e-5}),
        "mean_wait": ("9s", {"mean_wait": "2s"}),
        "p95_wait": ("9s", {"p95_wait": "2s"}),
        "min_interval": ("2s", COSTS),
        "max_interval": ("2s", COSTS),
        "hold": ("3s", COSTS),
    },
}


def test_every_parameter_of_every_strategy_is_tried() -> None:
    tried = {name: set(others) for name, others in OTHERS.items()}
    assert tried == {
        name: {each.key for each in parameters(strategy)} for name, strategy in STRATEGIES.items()
    }


#: What was seen with some settings: the usual ones are those of many tests.
POLLS: dict[str, object] = {}
CASES = [(name, key) for name, others in OTHERS.items() for key in others]


@pytest.mark.parametrize(("strategy", "key"), CASES)
@pytest.mark.parametrize("section", ["worker", "outbox"])
@pytest.mark.filterwarnings("ignore:outbox.polling.strategy = 'adaptive'")
def test_a_parameter_changes_the_polls(
    section: str, strategy: str, key: str, folder: Folder
) -> None:
    value, beside = OTHERS[strategy][key]
    usual = {"strategy": strategy, **beside}
    if strategy == "ewma" and key == "held" and section == "worker":
        usual["held"] = False  # a queue in memory can hold, so that the default is to hold

    def polls(given: dict[str, object]) -> object:
        told = f"{section} {sorted(given.items())}"
        if told not in POLLS:
            POLLS[told] = run(given)
        return POLLS[told]

    def run(given: dict[str, object]) -> object:
        settings = folder.load(
            overrides={f"{section}.polling.{name}": each for name, each in given.items()}
        )
        try:
            return polls_of(section, settings)
        except ConfigError as refused:  # an outbox cannot hold a poll, and says so
            return str(refused).partition("holds its polls")[1] or pytest.fail(str(refused))

    assert polls({**usual, key: value}) != polls(usual)


@pytest.mark.parametrize("section", ["worker", "outbox"])
@pytest.mark.parametrize(
    ("key", "value", "strategy"),
    [("drain", True, "fixed"), ("drain", False, "adaptive"), ("batch", 3, "batch_fill")],
)
@pytest.mark.filterwarnings("ignore:outbox.polling.strategy = 'adaptive'")
def test_how_much_is_claimed_and_what_follows_changes_the_polls(
    section: str, key: str, value: object, strategy: str, folder: Folder
) -> None:
    if (section, key) == ("worker", "batch"):
        key = "concurrency"
    usual: dict[str, object] = {f"{section}.polling.strategy": strategy}
    before, after = (
        folder.load(overrides=each) for each in (usual, {**usual, f"{section}.{key}": value})
    )
    assert polls_of(section, before) != polls_of(section, after)


WORKER = WorkerRunOptions(concurrency=8, prefetch=0, hints=False, signals=False, seed=1)
RELAY = OutboxRunOptions(batch=8, hints=False, signals=False, seed=1)


def polls_of(section: str, settings: Settings) -> list[PollFinished]:
    if section == "worker":
        return worker_polls(_with_settings(WORKER, settings, section))
    return relay_polls(_with_settings(RELAY, settings, section))


def worker_polls(options: WorkerRunOptions) -> list[PollFinished]:
    async def main(clock: VirtualClock) -> list[PollFinished]:
        queue, seen = MemoryQueue(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)
        worker.handle("x")(lambda _: None)
        async with working(worker, options):
            for at, count in ARRIVALS:
                await clock.advance(at - clock.now())
                await queue.put([NewJob("x") for _ in range(count)])
            await clock.advance(30)
        return seen.of(PollFinished)

    return virtually(main)


def relay_polls(options: OutboxRunOptions) -> list[PollFinished]:
    bench = Bench()

    async def main() -> None:
        outbox: Outbox = bench.outbox()
        outbox.options = options
        outbox.handle("*")(bench.recorder("publish"))
        async with outbox.running():
            for at, count in ARRIVALS:
                await bench.clock.advance(at - bench.clock.now())
                keys = [f"{at}-{number}" for number in range(count)]
                await bench.store.put([NewRecord("x", None, key) for key in keys])
            await bench.clock.advance(30)

    bench.run(main())
    return bench.events(PollFinished)


# Keys that are not about polling

#: The options that a section becomes, and the folders that may read them.
OPTIONS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "worker": (WorkerRunOptions, ("worker", "runtime")),
    "outbox": (OutboxRunOptions, ("outbox", "runtime")),
    "fleet": (FleetRunOptions, ("fleet",)),
    "controller": (ControllerOptions, ("controller",)),
    "agent": (AgentOptions, ("agent",)),
    "web": (ServerOptions, ("controller",)),
}


@pytest.mark.parametrize("section", OPTIONS)
def test_every_option_is_read_where_it_has_an_effect(section: str) -> None:
    kind, folders = OPTIONS[section]
    read = attributes_read(folders)
    assert [each.name for each in fields(kind) if each.name not in read] == []


def test_every_key_becomes_an_option_or_is_read_by_a_command() -> None:
    for row in documented_keys():
        section, _, name = row.key.partition(".")
        if section == "codec":  # it becomes codecs, which tests/cli/test_keys.py uses
            assert name in attributes_read(("settings",)), f"{row.key} is read by nothing"
            continue
        if row.key == "fleet.preset":  # it becomes a layer: tests/fleet/test_settings.py
            continue
        kind, folders = OPTIONS[section]
        known = {each.name for each in fields(kind)} | attributes_read(("cli", *folders))
        name = name.removesuffix(".strategy").replace(".", "_")
        assert name in known, f"{row.key} is read by nothing"


@cache
def attributes_read(folders: tuple[str, ...]) -> set[str]:
    """The attributes that code in these folders reads, outside of `__post_init__`.

    `options.span("grace")` reads `grace`.
    """
    found: set[str] = set()
    for folder in folders:
        for file in (Path(pollwise.__file__).parent / folder).rglob("*.py"):
            for node in _without_checks(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add(node.attr)
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "span":
                    found |= {
                        str(each.value) for each in node.args if isinstance(each, ast.Constant)
                    }
    return found


def _without_checks(node: ast.AST) -> Any:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.FunctionDef) and child.name == "__post_init__"):
            yield child
            yield from _without_checks(child)
