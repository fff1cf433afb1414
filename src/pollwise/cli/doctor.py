"""`pollwise doctor`: check that a worker or a relay has everything it needs."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, closing, suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode

import typer

from pollwise import __version__
from pollwise.cli.options import Json
from pollwise.cli.output import print_json, say, visible_lines
from pollwise.durations import seconds
from pollwise.errors import ConfigError, PollwiseError, did_you_mean
from pollwise.fleet.probes import ADDED as PROBES
from pollwise.outbox.publishers.urls import ADDED as PUBLISHERS
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.outbox.stores.urls import open_store
from pollwise.platforms import loops
from pollwise.plugins import Plugin, installed
from pollwise.queues.base import Queue
from pollwise.queues.urls import ADDED as QUEUES
from pollwise.queues.urls import open_queue
from pollwise.runtime.events import Events, HintsLost, HintsProven
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.runtime.redact import split_url, without_secrets
from pollwise.settings import load
from pollwise.settings.codecs import codec_of
from pollwise.settings.strategies import ADDED as STRATEGIES
from pollwise.sources.urls import ADDED as SOURCES
from pollwise.storage.sqlite import write_ahead_log
from pollwise.storage.sqlite.file import OLDEST_SQLITE

#: How long the doctor waits for a hint to arrive, in seconds.
HINT_DEADLINE = 2.0
#: How long it waits for a channel to be proven or lost; longer than the timeout of a check.
CHANNEL_DEADLINE = 15.0

#: Bytes that the doctor writes beside a store, and the free space below which it warns.
PROBE_BYTES = 1024 * 1024
FREE_MIN = 256 * 1024 * 1024
#: The queue in which the doctor puts and finishes a test job, and the stores in which it does so.
OWN_NAME = "pollwise-doctor"
SERVERS = ("redis", "rediss", "postgresql", "postgres")

#: What packages can add.
GROUPS = {each.name: each for each in (QUEUES, STRATEGIES, PROBES, PUBLISHERS, SOURCES)}

COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}


class Finding(NamedTuple):
    """The result of one check: `ok`, `note` (works, with a limitation) or `bad`, and what to do.

    facts: more about it, for --json.
    """

    check: str
    level: str
    says: str
    facts: Mapping[str, Any] = MappingProxyType({})

    def as_json(self) -> dict[str, Any]:
        return {"check": self.check, "level": self.level, "says": self.says, **self.facts}


def doctor(
    url: Annotated[
        str | None, typer.Argument(help="Also check this queue, or the database of an outbox.")
    ] = None,
    outbox: Annotated[
        bool, typer.Option("--outbox", help="The URL is that of an outbox (implied by ?outbox=).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine, the settings and, if given, a queue or an outbox.

    It also lists what installed packages add: queues, strategies, probes, publishers and sources.

    Your jobs and records are not changed. To test writing, it creates and deletes a file beside a
    local store; on Redis and Postgres, it puts and finishes a job in its own queue,
    pollwise-doctor.

    Exit code 0, or 1 when anything is bad.

    Example: pollwise doctor sqlite:///jobs.db
    """
    system = f"{platform.python_version()} on {platform.system()}, pollwise {__version__}"
    findings = [Finding("python", "ok", system), _sqlite(), _metrics(), _settings()]
    findings += map(_plugin, installed())
    if url is not None:
        of_outbox = outbox or "outbox" in parse_qs(split_url(url).query, keep_blank_values=True)
        findings += loops.run(_outbox(url) if of_outbox else _queue(url))
    elif outbox:
        raise ConfigError("--outbox needs the URL of its database: pollwise doctor URL --outbox")
    if as_json:
        print_json([finding.as_json() for finding in findings])
    else:
        for check, level, says, _ in findings:
            mark = (f"{level:<4}", COLOURS[level])
            say(mark, " ", (check, "bold"), "  ", visible_lines(says))
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)


def _sqlite() -> Finding:
    oldest = ".".join(map(str, OLDEST_SQLITE))
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        return Finding(
            "sqlite", "bad", f"{sqlite3.sqlite_version}; sqlite:// queues need {oldest} or newer"
        )
    return Finding("sqlite", "ok", f"{sqlite3.sqlite_version} (needs {oldest})")


def _metrics() -> Finding:
    if importlib.util.find_spec("prometheus_client") is None:
        return Finding("metrics", "note", "not installed: pip install 'pollwise[metrics]'")
    return Finding("metrics", "ok", "prometheus_client is installed")


def _settings() -> Finding:
    try:
        settings = load(runs="*")
        chain = codec_of(settings)
        codec = "" if chain is None else f"; payloads encoded by {settings.codec.payloads}"
        return Finding("settings", "ok", f"valid; polling by {settings.worker.polling!r}{codec}")
    except PollwiseError as error:
        return Finding("settings", "bad", str(error))


def _plugin(plugin: Plugin) -> Finding:
    """Whether an entry point of a package can be used."""
    group, level = GROUPS.get(plugin.group), "ok"
    says = f"{plugin.group} {plugin.name} = {plugin.value}, by {plugin.package}"
    if group is None:
        level, says = "note", f"{says}: no such group; {did_you_mean(plugin.group, GROUPS)}"
    elif plugin.name in group.built_in():
        level, says = "note", f"{says}: {group.not_used(plugin)}"
    else:
        try:
            group.refuse(plugin)
        except ConfigError as error:
            level, says = "bad", str(error)
    facts = {**asdict(plugin), "loads": level == "ok"}
    return Finding("plugin", level, says, facts)


async def _queue(url: str) -> list[Finding]:
    parts = split_url(url)
    disk = []
    if parts.scheme in ("sqlite", "file") and not parts.netloc:
        place = Path(unquote(parts.path[1:] if parts.scheme == "sqlite" else parts.path))
        disk = _disk(place.parent if parts.scheme == "sqlite" else place)
        disk += check_log(place) if parts.scheme == "sqlite" else []
    try:
        async with open_queue(url, create=False) as queue:
            stats = await queue.stats()
            says = f"{queue.url}: {stats.ready} ready, {stats.dead} dead"
            findings = [Finding("queue", "ok", says)]
            if stats.dead:
                look = f"{stats.dead}: pollwise queue list '{url}' --state dead"
                findings.append(Finding("dead jobs", "note", look))
            if parts.scheme in SERVERS:
                findings.append(await _writing(url))
            findings.append(await _hints(url, queue.capabilities.hints))
    except PollwiseError as error:
        return [Finding("queue", "bad", str(error)), *disk]
    return [*findings, *disk]


def _disk(folder: Path) -> list[Finding]:
    """Test writing beside a store, if its folder exists, and check the free space."""
    folder = folder.absolute()
    if not folder.is_dir():
        return []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        why = error.strerror or str(error)
        says = f"cannot write {PROBE_BYTES // 1024} KiB in {folder}: {why}; puts and claims fail"
        return [Finding("disk", "bad", says)]
    free = shutil.disk_usage(folder).free
    says = f"{free / 2**30:.1f} GiB free in {folder}"
    if free < FREE_MIN:
        says = f"only {free // 2**20} MiB free in {folder}; when it is full, puts and claims fail"
    return [Finding("disk", "note" if free < FREE_MIN else "ok", says)]


def check_log(path: Path) -> list[Finding]:
    """The size of a SQLite file's write-ahead log, and what keeps it if it is large."""
    if not path.is_file():
        return []
    size, kept = write_ahead_log.log_size(path), write_ahead_log.LOG_KEPT // 2**20
    if size > write_ahead_log.LOG_KEPT:
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection:
            if write_ahead_log.readers_keep_log(connection):
                says = "; ".join(write_ahead_log.text_of_large_log(path, size))
                return [Finding("write-ahead log", "note", says)]
    says = f"{size / 2**20:.1f} MiB; SQLite cuts it to {kept} MiB when it begins again"
    return [Finding("write-ahead log", "ok", says)]


async def _writing(url: str) -> Finding:
    """Put, claim and finish a job in a queue of the doctor's own."""
    parts = split_url(url)
    others = [pair for pair in parse_qsl(parts.query) if pair[0] not in ("queue", "keep")]
    query = urlencode([*others, ("queue", OWN_NAME)], quote_via=quote)
    try:
        async with open_queue(parts._replace(query=query).geturl(), create=False) as queue:
            await queue.put(NewJob(OWN_NAME))
            claims = await queue.claim(OWN_NAME, 10, "10s")
            await queue.settle([Settlement.done(claim) for claim in claims])
    except PollwiseError as error:
        return Finding("writing", "bad", str(error))
    return Finding("writing", "ok", "a job can be put, claimed and finished")


async def _hints(url: str, reach: str) -> Finding:
    """Send a hint through one handle and receive it at another, as two processes would."""
    if reach == "network":
        return await _channel(open_queue(url, create=False))
    if reach != "machine":
        return Finding("hints", "note", f"reach this {reach} only")
    watch = seconds(parse_qs(split_url(url).query).get("watch", ["100ms"])[0])
    if not watch:
        return Finding("hints", "note", "off: the URL says watch=0, so workers only poll")
    deadline = HINT_DEADLINE + watch
    hint = Hint()
    async with open_queue(url, create=False) as receiver, open_queue(url, create=False) as sender:
        receiver.hints().join(hint)
        receiver.hints().asleep(hint)
        sender.hints().send_to_others()
        arrived = await hint.wait(deadline)
    if arrived:
        return Finding("hints", "ok", "reach other processes on this machine")
    return Finding(
        "hints", "bad", f"did not arrive within {deadline:g} s; check that the folder is writable"
    )


async def _outbox(url: str) -> list[Finding]:
    try:
        async with open_store(url) as store:
            stats = await store.stats()  # raises if it is not migrated
            says = f"{store.url}: {stats.ready} ready, {stats.dead} dead"
            findings = [Finding("outbox", "ok", says)]
            if stats.keys_blocked:
                look = f"{stats.keys_blocked}: pollwise outbox blocked '{without_secrets(url)}'"
                findings.append(Finding("blocked keys", "note", look))
            if isinstance(store, SqliteOutboxStore):
                rest = [*_disk(store.path.parent), *check_log(store.path)]
                return [*findings, _journal(store), *rest]
        return [*findings, await _channel(open_store(url))]
    except PollwiseError as error:
        return [Finding("outbox", "bad", str(error))]


def _journal(store: SqliteOutboxStore) -> Finding:
    """The journal mode. Hints need no check here: they are the changes of the file itself."""
    address = f"{store.path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        [(mode,)] = connection.execute("PRAGMA journal_mode")
    if mode == "wal":
        return Finding("journal", "ok", "wal")
    return Finding(
        "journal",
        "note",
        f"{mode}: a relay that reads and an application that commits wait for each other; "
        "PRAGMA journal_mode = WAL avoids that",
    )


async def _channel(opened: AbstractAsyncContextManager[Queue | OutboxStore]) -> Finding:
    """Wait until the hint channel is proven or lost, as a pausing worker or relay does."""
    results: asyncio.Queue[HintsProven | HintsLost] = asyncio.Queue()
    events = Events(quiet=True)
    events.subscribe(results.put_nowait, HintsProven, HintsLost)
    hint = Hint()
    async with opened as store:
        hints = store.hints()
        hints.report_to(store.name, events)
        hints.join(hint)
        hints.asleep(hint)
        try:
            result = await asyncio.wait_for(results.get(), CHANNEL_DEADLINE)
        except TimeoutError:
            says = f"no check came back within {CHANNEL_DEADLINE:g} s, so hints end no pause early"
            return Finding("hints", "bad", says)
        finally:
            hints.leave(hint)
    if isinstance(result, HintsProven):
        return Finding("hints", "ok", f"proven: a check came back in {result.took * 1000:.0f} ms")
    return Finding("hints", "bad", f"{result.reason}; {result.advice}")
