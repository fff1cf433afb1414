"""Write docs/reference/, docs/runbooks/, tables in the docs and CONTRIBUTING from the code.

python scripts/reference.py           write the pages
python scripts/reference.py --check   fail when a page is out of date
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

import figures
import guarantees
import llms
import pollwise
import stability
from diagrams import layers
from pollwise.cli.app import app
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.completion import Completion
from pollwise.durations import short
from pollwise.fleet.probes import MODULES, facts_of
from pollwise.lab.cost import idle_polls_a_month
from pollwise.lab.prices import PRICES, dollars_a_month
from pollwise.lab.replay.base import Situation
from pollwise.lab.replay.engine import replay
from pollwise.lab.traces.synthetic import workload
from pollwise.observe.metrics import METRICS
from pollwise.observe.rules import RULES, runbook
from pollwise.outbox.records import (
    BlockedKey,
    HeldRecord,
    KeyClaim,
    KeySettlement,
    OutboxStats,
    RecordInfo,
    RelayInfo,
)
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.postgres.store import PostgresOutboxStore
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.outbox.stores.urls import open_store
from pollwise.queues.base import Queue
from pollwise.queues.breakers import OpenBreaker, SharedBreakers
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.limits.calls import Limits
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import GroupUse, LimitUse
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.notes import PauseInfo
from pollwise.queues.objects.queue import ObjectQueue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.presence import RunningJob, WorkerInfo
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.schedules.calls import Schedules
from pollwise.queues.schedules.record import Schedule
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.sqs.queue import SqsFifoQueue, SqsQueue
from pollwise.runtime import events
from pollwise.runtime.store import WorkStore
from pollwise.settings import STRATEGIES, documented_keys
from pollwise.settings.strategies import parameters

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FOLDER = DOCS / "reference"
RUNBOOKS = DOCS / "runbooks"
TUTORIAL = DOCS / "tutorial" / "getting-started.md"
PROBES = DOCS / "how-to" / "fleet-probes.md"
SQS = DOCS / "how-to" / "sqs.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
README = ROOT / "README.md"
GUARANTEES = DOCS / "why" / "guarantees.md"
PACKAGE = ROOT / "src" / "pollwise"
TRADEOFFS: tuple[tuple[Strategy, str], ...] = (
    (pollwise.Adaptive("100ms", "30s"), "batch jobs, cost above all"),
    (pollwise.Adaptive("100ms", "5s"), "most workers (the default)"),
    (pollwise.Adaptive("100ms", "1s"), "near real time"),
    (pollwise.Fixed("500ms"), "steady load, one simple number"),
    (pollwise.Fixed("100ms"), "latency above all"),
)
NOTE = "<!-- Written by scripts/reference.py from the code; change the code, not this page. -->"
COMPLETION_NOTE = (
    "Only in Python: a worker or a relay polls for items that keep coming, and settings could not "
    "give the history. [When to look at something that will finish](../why/until.md) explains it."
)
SETTINGS_NOTE = """Defaults < `pollwise.toml` < changes while a fleet ran < environment < arguments:
the right one wins. `pollwise config show` prints every value and where it came from. A duration is
written `"250ms"`, `"5s"`, `"2m"` or as a number of seconds; every duration has a second key that
ends in `_ms` and takes milliseconds."""
POLLING_NOTE = """A polling table names a strategy and sets its parameters:

```toml
[worker.polling]
strategy = "adaptive"
max_interval = "2s"
```

The environment variable of a key is the prefix of its table and the key in capitals:
`POLLWISE_POLLING_MAX_INTERVAL=2s` does the same. All polling tables take the strategies and
parameters below.

{tables}

`[fleet.groups.NAME.polling]` sets `enabled`, `base_interval`, `min_interval` and `max_interval` for
the targets of one group (`POLLWISE_FLEET_GROUPS_NAME_POLLING_ENABLED`, …). They override
`[fleet.polling]`."""
EVENTS_NOTE = """Subscribe with `worker.events.subscribe(sink, EventClass, …)`; an outbox has
`outbox.events`. Log records carry the name of the event as `action`: `PollFailed` is
`"poll_failed"`. Events without a level in the last column are logged at debug level. `source` is
the name of a queue, or `outbox:` and the name of an outbox."""
METRICS_NOTE = """`pollwise worker`, `pollwise outbox run` and `pollwise fleet run` serve these
metrics on 127.0.0.1 if you give them a port: `--metrics-port 9091`, or `metrics_port` in the
settings. There is no default port: without one, no metrics are served. They need the extra
`metrics`: `pip install 'pollwise[metrics]'`. The series of a queue are removed when the last worker
of the process on that queue stops, those of an outbox when its last relay stops, and those of a
fleet when it stops.

The metrics of a fleet are by type and group. The label `target` and `pollwise_fleet_breaker_state`
are only there with `--metrics-by target` (`fleet.metrics_by`). Then 20,000 targets are 66 MB a
scrape, which takes 6 seconds; by group, in 20 groups, they are 60 kB and 10 milliseconds. With
several nodes, each counts the targets that it polls: sum over the nodes. A target without a group
has the group `""`.

`pollwise queue export` serves the metrics `pollwise_queue_…`, and so does a worker with
`worker.export_queue = true`."""
OTEL_NOTE = """The same metrics, with the same labels as attributes and the same buckets. They
need the extra `otel` and a MeterProvider that your program configures; see
[Observe metrics](../how-to/observe-metrics.md). An exporter from OpenTelemetry to Prometheus writes
dots as underscores, and adds the unit and the `_total` of counters: the last column."""
#: The instruments of OpenTelemetry.
OTEL_TYPES = {
    "counter": "asynchronous counter",
    "gauge": "asynchronous gauge",
    "histogram": "histogram",
}
RUNBOOKS_NOTE = """What to do when an alert of `pollwise observe alerts` fires. The command writes
the same pages next to the rules, and each alert links to its page.
[Observe Pollwise](../how-to/observe.md) says how to install the rules."""
STATES_NOTE = """A job with a `delay` or a `run_at` is *delayed* until its time. A job is *blocked*
while an older job with the same key is unfinished. A claim makes a ready job *leased*, and the
worker renews the lease while the handler runs. If the worker dies, the lease ends and the job is
ready again; if that happens twice in a row, it is claimed alone. A job that failed is retried after
a delay; once it has no attempts left it is *dead*, and the next job of its key can run. Dead
jobs stay until you retry them (`pollwise queue retry`) or
delete them (`pollwise queue drop`). `cancel` ends a job that waits at once, as *cancelled*. A job
that runs stays leased; its worker learns of it by a broadcast or with its next renewal, stops the
handler and settles the job as cancelled. Done and cancelled jobs are deleted, or kept for the
`keep` of the queue; one whose result is kept stays for its `result_ttl`."""
OUTBOX_NOTE = """The tables of an outbox are in your own database. `pollwise.Outbox` and
`OutboxRunOptions` are under [Python names](python.md), the `[outbox]` settings under
[Settings](settings.md)."""
RECORD_NOTE = """A relay claims a *key* under a lease, with the first records of that key, and hands
them to the handlers in order. A record whose handler failed is *waiting* until its retry, and the
records behind it wait too. A record with no attempts left is *dead*. By default it blocks its key
until you retry it (`pollwise outbox retry`) or delete it (`pollwise outbox drop`);
[Ordering](../why/ordering.md) describes the alternative. Records without a key do not wait for each
other."""
#: Answers that any route may give; they are described once.
ANY_ROUTE = ("401", "403", "503")
HTTP_NOTE = """The HTTP API of `pollwise serve`. A running controller describes it for programs at
`/openapi.json`. Every request except health checks needs `Authorization: Bearer <token>`. The scope
of a token says what it allows: `read` reads everything except tokens and changes nothing; `put`
puts jobs, and reads, cancels and retries those that it put, or those of all tokens if it was made
with `all_jobs` (`pollwise serve token create put --all-jobs`); `operate` reads, cancels and retries
all jobs and drains workers; `worker` registers workers; `admin` allows everything. A worker
receives its own token when it registers, for its own polls and jobs. Times are ISO 8601 in UTC.

Errors are JSON and have one form:
`{"error": {"code": "no_such_job", "message": "…", "what_to_do": "…"}}`. Any route may answer 401
(the token is missing or invalid), 403 (its scope does not allow the request) and 503 (the store
does not answer; `Retry-After` says when to try again).

The WebSocket `/api/workers/ws?worker_id=…` takes the token in the same header, or as its first
message, `{"token": "…"}`. It sends `{"hint": true}` when a poll may find a job,
`{"cancel": "<job id>"}`, and `{"ping": true}` from time to time. It never carries a job."""
FLEET_HTTP_NOTE = """The HTTP API of `pollwise fleet run --api-port 8765`, or of a fleet in your own
application. A running fleet describes it for programs at `/openapi.json`. Every request except
health checks needs `Authorization: Bearer <token>`: the fleet's own token, or one of a controller
(`fleet.api_tokens`), whose scope `read` reads and `operate` also changes. Times are seconds since
1970. All changes are in the audit log.

Errors are JSON and have one form: `{"error": {"code": "not_found", "message": "…",
"what_to_do": "…"}}`. Any route may answer 401 (the token is missing or invalid), 403 (its scope
does not allow the request) and 503 (the store does not answer)."""
COMMANDS_NOTE = """All commands of `pollwise`, with their options and an example.

Exit codes: 0 success; 1 not found, or a check failed; 2 bad input, or the
store could not be reached or refused the call; 70 a handler did not end, and the process was ended;
75 the process stopped to be replaced by a fresh one: start it again. `--json` prints one JSON
document on standard output."""
QUEUES: dict[str, type[Queue]] = {
    "memory://": MemoryQueue,
    "sqlite:///": SqliteQueue,
    "postgresql://": PostgresQueue,
    "redis://": RedisQueue,
    "s3://": ObjectQueue,
    "sqs://name": SqsQueue,
    "sqs://name.fifo": SqsFifoQueue,
}
#: Queues with arguments of their own.
CLASSES: dict[str, type[Queue]] = {
    "SQLite": SqliteQueue,
    "Postgres": PostgresQueue,
    "Redis": RedisQueue,
    "Object storage": ObjectQueue,
    "SQS": SqsQueue,
    "SQS, FIFO": SqsFifoQueue,
}
LEVELS = {10: "", 20: "info", 30: "warning", 40: "error"}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [_row(columns), _row("---" for _ in columns)]
    lines += [_row(_cell(value) for value in row) for row in rows]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0]


def signature(thing: Callable[..., Any], name: str) -> str:
    """The signature of a call, with one argument per line if it is long."""
    found = inspect.signature(thing)
    parameters = [p for p in found.parameters.values() if p.name != "self"]
    words, starred = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        word = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", str(parameter)).replace("'", "")
        if isinstance(parameter.default, str):
            word = f"{word.partition(' = ')[0]} = {json.dumps(parameter.default)}"
        words.append(word)
    returned = found.return_annotation
    arrow = "" if returned in (inspect.Signature.empty, None, "None") else f" -> {returned}"
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) > 88:
        line = "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){arrow}"])
    return f"```text\n{line}\n```"


#: How a line of a docstring starts that describes an argument: `name: …` or `name, name: …`.
ARGUMENT = re.compile(r"([a-z_0-9]+(?:, [a-z_0-9]+)*): ")


def prose(thing: object) -> str:
    """A docstring as Markdown: `name: meaning` becomes a list, indented code a block."""
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs)


def _paragraph(text: str) -> str:
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    if text.startswith("    "):
        return f"```text\n{inspect.cleandoc(text)}\n```"
    if not ARGUMENT.match(text):
        return text
    lines: list[str] = []
    for line in text.splitlines():
        if ARGUMENT.match(line):
            lines.append(ARGUMENT.sub(_bullet, line, count=1))
        elif line[0].isupper() and lines[-1].endswith("."):  # a sentence after the list
            lines += ["", line]
        else:
            lines[-1] += f" {line.strip()}"
    return "\n".join(lines)


def _bullet(argument: re.Match[str]) -> str:
    return f"- {', '.join(f'`{name}`' for name in argument[1].split(', '))}: "


def describe(thing: Callable[..., Any], name: str) -> str:
    if not callable(thing):  # a value, explained by its class
        return prose(type(thing))
    return f"{signature(thing, name)}\n\n{prose(thing)}"


def strategies_page() -> str:
    parts = [
        "# Strategies",
        "A strategy is an immutable recipe. Its arguments are checked when it is created.",
        "If none of these fits, [write your own](../extend/strategy.md).",
    ]
    for name, strategy in STRATEGIES.items():
        parts += [f"## {strategy.__name__}", describe(strategy, strategy.__name__)]
        parts.append(f'In settings: `strategy = "{name}"`, and the arguments by their names.')
    parts += ["## Completion", describe(Completion, "Completion"), COMPLETION_NOTE]
    return "\n\n".join(parts)


def settings_page() -> str:
    keys = [row for row in documented_keys() if not row.key.endswith(".polling.strategy")]
    parts = ["# Settings", SETTINGS_NOTE]
    for section in dict.fromkeys(row.key.partition(".")[0] for row in keys):
        rows = (
            (f"`{row.key}`", row.meaning, row.kind, f"`{row.default}`", f"`{row.variable}`")
            for row in keys
            if row.key.startswith(f"{section}.")
        )
        heads = ("key", "meaning", "type", "default", "environment")
        parts += [f"## [{section}]", table(heads, rows)]
    tables = (
        (
            f"`[{row.key.removesuffix('.strategy')}]`",
            f"`{row.default}`",
            f"`{row.variable.removesuffix('STRATEGY')}`",
        )
        for row in documented_keys()
        if row not in keys
    )
    columns: tuple[str, ...] = ("table", "default strategy", "environment prefix")
    parts += ["## Polling tables", POLLING_NOTE.format(tables=table(columns, tables))]
    described = (
        (
            f"`{name}`",
            f"`{each.key}`",
            each.meaning[0].upper() + each.meaning[1:],
            each.reader.kind,
            f"`{each.default_text}`",
        )
        for name, strategy in STRATEGIES.items()
        for each in parameters(strategy)
    )
    columns = ("strategy", "key", "meaning", "type", "default")
    return "\n\n".join([*parts, "## Strategies", table(columns, described)])


def events_page() -> str:
    rows = [
        (
            f"`{kind.__name__}`",
            first_line(kind),
            ", ".join(f"`{f.name}`" for f in dataclasses.fields(kind)),
            LEVELS[kind.level],
        )
        for kind in events.all_events()
    ]
    columns = ("event", "meaning", "fields", "logged at")
    return "\n\n".join(["# Events", EVENTS_NOTE, table(columns, rows)])


def metrics_page() -> str:
    rows = (
        (f"`{m.name}`", m.type, ", ".join(f"`{label}`" for label in m.labels), m.help)
        for m in METRICS
    )
    columns = ("metric", "type", "labels", "meaning")
    theirs = (
        (f"`{m.otel_name}`", OTEL_TYPES[m.type], m.otel_unit and f"`{m.otel_unit}`", f"`{m.name}`")
        for m in METRICS
    )
    parts = ["# Metrics", METRICS_NOTE, "## Prometheus", table(columns, rows), "## OpenTelemetry"]
    parts += [OTEL_NOTE, table(("metric", "instrument", "unit", "in Prometheus"), theirs)]
    return "\n\n".join(parts)


#: The calls of `queue.schedules` that are not for workers and controllers.
SCHEDULE_CALLS = ("set", "list", "get", "remove", "pause", "resume", "run", "last_states")

#: The same of `queue.limits`.
LIMIT_CALLS = ("set", "list", "use", "remove")


def queues_page() -> str:
    names = [f.name for f in dataclasses.fields(Capabilities)]
    rows = []
    for name in names:
        can = [getattr(queue.capabilities, name) for queue in QUEUES.values()]
        shown = ({True: "yes", False: "–"}.get(each, each) for each in can)
        rows.append((name.replace("_", " "), *shown))
    parts = [
        "# Queues",
        first_line(Queue),
        table(("", *(f"`{url}`" for url in QUEUES)), rows),
        prose(Capabilities),
        "## A job's states",
        "![The states of a job and what moves it](../assets/job-states.svg)",
        STATES_NOTE,
        "## Opening a queue",
        describe(pollwise.open, "pollwise.open"),
    ]
    for title, queue in CLASSES.items():
        home = queue.__module__.removesuffix(".queue")
        where = f"`from {home} import {queue.__name__}`"
        parts += [f"## {title}", where, describe(queue, queue.__name__)]
        for name, method in vars(queue).items():
            if hasattr(Queue, name) and inspect.isfunction(method) and _differs(name, method):
                parts += [describe(method, f"queue.{name}")]
    parts += ["## What every queue does"]
    for name, method in _calls(Queue):
        parts += [f"### {name}", describe(method, f"queue.{name}")]
    parts += ["## Schedules"]
    for name, method in vars(Schedules).items():
        if inspect.isfunction(method) and name in SCHEDULE_CALLS:
            parts += [f"### schedules.{name}", describe(method, f"queue.schedules.{name}")]
    parts += ["## Limits"]
    for name, method in vars(Limits).items():
        if inspect.isfunction(method) and name in LIMIT_CALLS:
            parts += [f"### limits.{name}", describe(method, f"queue.limits.{name}")]
    parts += ["## Breakers"]
    for name in ("list", "close"):
        method = getattr(SharedBreakers, name)
        parts += [f"### breakers.{name}", describe(method, f"queue.breakers.{name}")]
    parts += ["## Values"]
    values = (Schedule, KindLimits, LimitUse, GroupUse, OpenBreaker, PauseInfo, WorkerInfo)
    for value in (*values, RunningJob):
        parts += [f"### {value.__name__}", describe(value, value.__name__)]
    return "\n\n".join(parts)


def _calls(store: type[object]) -> Iterable[tuple[str, Callable[..., object]]]:
    """The public methods of a store: its own, then those of its bases."""
    bases = [each for each in store.__mro__ if issubclass(each, WorkStore)]
    found = dict(item for each in bases for item in vars(each).items())
    for name, method in {**found, **vars(store)}.items():
        if inspect.isfunction(method) and not name.startswith("_"):
            yield name, method


def _differs(name: str, method: Callable[..., object]) -> bool:
    """True if the method takes, and describes, arguments that `Queue` does not have."""
    if name.startswith("_") or not method.__doc__:
        return False
    return bool(
        set(inspect.signature(method).parameters)
        - set(inspect.signature(getattr(Queue, name)).parameters)
    )


def outbox_page() -> str:
    picture = "![The way of an outbox record](../assets/record-states.svg)"
    parts = ["# Outbox", OUTBOX_NOTE, "## A record's states", picture, RECORD_NOTE]
    parts += ["## Opening a store", describe(open_store, "open_store")]
    for store in (SqliteOutboxStore, PostgresOutboxStore):
        where = f"`from {store.__module__} import {store.__name__}`"
        parts += [f"## {store.__name__}", where, describe(store, store.__name__)]
    parts += ["## What every store does"]
    for name, method in _calls(OutboxStore):
        parts += [f"### {name}", describe(method, f"store.{name}")]
    parts += ["## Values"]
    values = (RecordInfo, OutboxStats, BlockedKey, KeyClaim, HeldRecord, KeySettlement, RelayInfo)
    for value in values:
        parts += [f"### {value.__name__}", describe(value, value.__name__)]
    return "\n\n".join(parts)


def python_page() -> str:
    parts = ["# Python names", "The names in `pollwise`."]
    errors = []
    for name in pollwise.__all__:
        thing = getattr(pollwise, name)
        if inspect.isclass(thing) and issubclass(thing, Exception):
            errors.append((f"`{name}`", first_line(thing)))
        elif inspect.isclass(thing) and issubclass(thing, (Strategy, Queue)):
            continue  # these have their own pages
        else:
            parts += [f"## {name}", describe(thing, f"pollwise.{name}")]
            parts += list(_methods(thing))
    parts += ["## Errors and signals", table(("name", "meaning"), errors)]
    return "\n\n".join(parts)


def _methods(thing: object) -> Iterable[str]:
    if not inspect.isclass(thing):
        return
    # Tasks and flows share calls; other bases are not for users.
    ours = [each for each in thing.__mro__ if each.__module__.startswith("pollwise.worker.")]
    members = dict(item for each in reversed(ours) for item in vars(each).items())
    for name, member in {**vars(thing), **members}.items():
        method = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if inspect.isfunction(method) and not name.startswith("_") and method.__doc__:
            shown = signature(getattr(thing, name), f".{name}")
            yield f"{shown}\n\n{prose(method)}"


def commands_page() -> str:
    root = typer.main.get_command(app)
    prices = ((f"`{p.name}`", p.what) for p in PRICES.values())
    return "\n\n".join(
        [
            "# Commands",
            COMMANDS_NOTE,
            *_commands(root, "pollwise"),
            "## Prices",
            "For `--price`; or dollars per polls, as in `0.005/1000`.",
            table(("name", "what"), prices),
        ]
    )


def _commands(command: Any, path: str) -> Iterable[str]:
    subcommands = getattr(command, "commands", None)
    if subcommands:
        for name, sub in subcommands.items():
            yield from _commands(sub, f"{path} {name}")
        return
    yield f"## {path}"
    text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
    yield text.strip()
    yield f"```text\n{example.strip()}\n```"
    rows = [_option(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        yield table(("option", "meaning", "default"), rows)


def _option(parameter: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{n}`" for n in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.name or '').upper()}`"
    default = parameter.default
    plain = isinstance(default, (str, int, float)) and default != ""
    return names, getattr(parameter, "help", None) or "", f"`{default}`" if plain else ""


def http_api_page() -> str:
    """Every route of the controller, from its OpenAPI schema."""
    from pollwise.controller import Controller, ControllerOptions
    from pollwise.controller.http.codes import CODES
    from pollwise.controller.http.queues import routes as queue_api

    with tempfile.TemporaryDirectory() as folder:
        options = ControllerOptions(artefacts=folder)
        schema = Controller("memory://", options).app.openapi()
    codes = ((f"`{code}`", meaning) for code, meaning in CODES.items())
    parts = ["# HTTP API", HTTP_NOTE, *_routes(schema)]
    parts += ["## Queues", prose(queue_api), "## Error codes", table(("code", "meaning"), codes)]
    return "\n\n".join([*parts, *_models(schema)])


def fleet_api_page() -> str:
    """Every route of a fleet, from its OpenAPI schema."""
    from pollwise.fleet.api.description import description

    schema = description()
    parts = ["# HTTP API of a fleet", FLEET_HTTP_NOTE, *_routes(schema), *_models(schema)]
    return "\n\n".join(parts)


def _routes(schema: Any) -> Iterable[str]:
    """All routes in a table, and then each of them."""
    by_tag: dict[str, list[tuple[str, str, Any]]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    every = [route for routes in by_tag.values() for route in routes]
    rows = ((f"[`{m} {p}`](#{_anchor(m, p)})", o["summary"]) for m, p, o in every)
    yield table(("route", "what it does"), rows)
    for tag, routes in by_tag.items():
        yield f"## {tag.capitalize()}"
        for method, path, operation in routes:
            yield from _route(method, path, operation)


def _models(schema: Any) -> Iterable[str]:
    yield "## Models"
    for name, model in sorted(schema["components"]["schemas"].items()):
        if name not in ("Error", "ErrorDetail") and "properties" in model:
            yield f"### {name} {{#model-{name.lower()}}}"
            if "description" in model:
                yield model["description"]
            yield table(("field", "type", "meaning"), _fields(model))


def _anchor(method: str, path: str) -> str:
    return re.sub(r"[^a-z]+", "-", f"{method}{path}".lower()).strip("-")


def _route(method: str, path: str, operation: Any) -> Iterable[str]:
    yield f"### {method} {path} {{#{_anchor(method, path)}}}"
    needs = "" if operation.get("security") != [] else " Needs no token."
    yield f"{operation['summary']}.{needs} {operation.get('description', '')}".strip().replace(
        "?.", "?"
    )
    parameters = [
        (f"`{p['name']}`", p["in"], _type(p["schema"]), p.get("description", ""))
        for p in operation.get("parameters", ())
    ]
    if parameters:
        yield table(("parameter", "in", "type", "meaning"), parameters)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body, `{kind}`: {_type(content.get('schema', {}))}."
    answers = operation["responses"].items()
    rows = (_answered(status, said) for status, said in answers if status not in ANY_ROUTE)
    yield table(("answer", "what"), rows)


def _answered(status: str, answer: Any) -> tuple[str, str]:
    models = [
        shown
        for content in answer.get("content", {}).values()
        if (shown := _type(content.get("schema", {}))) and "Error" not in shown
    ]
    about = answer["description"].removesuffix("Successful Response").strip()
    return f"{status}", " ".join([about, *([f"({', '.join(models)})"] if models else [])]).strip()


def _fields(model: Any) -> Iterable[tuple[str, str, str]]:
    needed = model.get("required", ())
    for name, field in model["properties"].items():
        about = field.get("description", "")
        if "default" in field and field["default"] not in (None, {}, []):
            about = f"{about} Default: `{json.dumps(field['default'])}`.".strip()
        mark = "" if name in needed else ", optional"
        yield f"`{name}`", f"{_type(field)}{mark}", about


def _type(schema: Any) -> str:
    """The type of a value, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#model-{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any JSON")
    if isinstance(kind, list):  # as OpenAPI 3.1 writes what may also be null
        return " or ".join(_type({**schema, "type": each}) for each in kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    names = {"string": "text", "integer": "whole number", "boolean": "true or false"}
    if schema.get("format") == "binary":
        return "bytes"
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    span = "" if low is None or high is None else f" from {low:,.10g} to {high:,.10g}"
    return f"{names.get(kind, kind)}{span}"


def tradeoff() -> str:
    """The cost of an idle worker and its longest wait, measured under the virtual clock."""
    rows = []
    for strategy, use in TRADEOFFS:
        polls = idle_polls_a_month(strategy)
        dollars = [f"${polls * PRICES[name].dollars:,.2f}" for name in ("s3-list", "sqs")]
        worst = short(strategy.max_interval)
        shown = f"{strategy.name} {short(strategy.min_interval)}"
        if strategy.min_interval < strategy.max_interval:
            shown += f" to {worst}"
        rows.append((shown, f"{polls:,.0f}", *dollars, f"up to {worst}", use))
    columns = ("polling", "idle polls a month", "on S3 (LIST)", "on SQS", "first wait", "for")
    return table(columns, rows)


def held_or_not() -> str:
    """Strategies on SQS with and without a hold, on one trace: requests, dollars and waiting."""
    price = PRICES["sqs"]
    trace = workload("bursty", seed=0, hours=6)
    worth: dict[str, Any] = {"poll_cost": price.dollars, "wait_cost": 0.01 / 3600}
    rows = []
    for shown, strategy in (
        ("fixed 500 ms", pollwise.Fixed("500ms")),
        ("ewma, not held", pollwise.Ewma(held=False)),
        ("ewma, held", pollwise.Ewma(held=True)),
        ("worth, a cent an hour", pollwise.Worth(**worth)),
        ("worth, a cent an hour, held", pollwise.Worth(**worth, hold="20s")),
        ("adaptive 100 ms to 5 s", pollwise.Adaptive("100ms", "5s")),
        ("adaptive 100 ms to 5 s, held", pollwise.Adaptive("100ms", "5s", hold="20s")),
    ):
        done = replay(trace, strategy, Situation(capacity=10, hold=bool(strategy.longest_hold)))
        dollars = dollars_a_month(done.polls, done.span, price)
        waits = (f"{wait:.2f} s" for wait in (done.mean_wait, done.wait(0.95)))
        rows.append((shown, f"{done.polls:,}", f"${dollars:.2f}", *waits))
    return table(("polling", "receives", "a month", "mean wait", "p95"), rows)


def facts() -> str:
    """The facts of each probe type."""
    rows = []
    for type in MODULES:
        for name, about in (facts_of(type) or {}).items():
            rows.append((f"`{type}`" if name == "value" else "", f"`{name}`", about))
    return table(("type", "fact", ""), rows)


def architecture_map() -> str:
    """The parts of src/pollwise by layer, from the lowest to the highest."""
    rows = []
    for layer in layers():
        for name, about in layer["parts"].items():
            inside = sorted(path.parent.name for path in (PACKAGE / name).glob("*/__init__.py"))
            shown = f"`{name}/`" if (PACKAGE / name).is_dir() else f"`{name}.py`"
            rows.append((shown, about, " ".join(f"`{each}/`" for each in inside)))
    return table(("part", "what lives there", "folders inside"), rows)


def with_table(page: Path, name: str, made: str, text: str | None = None) -> str:
    """The text of a page, or this one, with the table between its two marks replaced."""
    before, begin, rest = (text or page.read_text("utf-8")).partition(f"<!-- {name}:begin -->\n")
    _, end, after = rest.partition(f"<!-- {name}:end -->")
    if not end:
        raise SystemExit(
            f"{page.name} lacks the lines <!-- {name}:begin --> and <!-- {name}:end -->"
        )
    return f"{before}{begin}{made}\n{end}{after}"


def runbooks_page() -> str:
    """The list of the runbooks."""
    rows = [
        (f"[{rule.name}]({rule.page}.md)", rule.severity, rule.meaning.partition(". ")[0])
        for rule in RULES
    ]
    return "\n\n".join(("# Runbooks", RUNBOOKS_NOTE, table(("alert", "severity", ""), rows)))


PAGES: dict[str, Callable[[], str]] = {
    "strategies.md": strategies_page,
    "settings.md": settings_page,
    "queues.md": queues_page,
    "http-api.md": http_api_page,
    "fleet-api.md": fleet_api_page,
    "commands.md": commands_page,
    "events.md": events_page,
    "metrics.md": metrics_page,
    "outbox.md": outbox_page,
    "python.md": python_page,
    "stability.md": stability.page,
}


def main(arguments: list[str]) -> int:
    for folder in (FOLDER, RUNBOOKS):
        folder.mkdir(parents=True, exist_ok=True)
    wanted = {FOLDER / name: f"{NOTE}\n\n{page()}\n" for name, page in PAGES.items()}
    wanted[RUNBOOKS / "index.md"] = f"{NOTE}\n\n{runbooks_page()}\n"
    wanted |= {RUNBOOKS / f"{rule.page}.md": f"{NOTE}\n\n{runbook(rule)}" for rule in RULES}
    wanted[TUTORIAL] = with_table(TUTORIAL, "tradeoff", tradeoff())
    wanted[SQS] = with_table(SQS, "held", held_or_not())
    wanted[PROBES] = with_table(PROBES, "facts", facts())
    wanted[CONTRIBUTING] = with_table(CONTRIBUTING, "map", architecture_map())
    wanted[DOCS / "why" / "figures.md"] = f"{NOTE}\n\n{figures.page()}\n"
    made = f"{table(guarantees.COLUMNS, guarantees.rows())}\n\n{guarantees.meanings()}"
    wanted[GUARANTEES] = with_table(GUARANTEES, "guarantees", made)
    wanted[README] = with_table(README, "figures", figures.readme_table())
    for name, line in stability.lines():
        path = DOCS / name
        wanted[path] = with_table(path, "stability", line, wanted.get(path))
    wanted[DOCS / "llms.txt"] = llms.index(wanted)
    stale = []
    for path, text in wanted.items():
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.append(path.name)
        if "--check" not in arguments:
            path.write_text(text, "utf-8")
    if stale and "--check" in arguments:
        print(f"out of date: {', '.join(stale)}", file=sys.stderr)
        print("run: .venv/bin/python scripts/reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
