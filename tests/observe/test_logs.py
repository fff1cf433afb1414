"""Log records: text for people, JSON lines for machines."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from pollwise.errors import ConfigError
from pollwise.observe import logs
from pollwise.runtime.events import Events, JobDead, PollFinished, WorkerStarted
from pollwise.runtime.redact import without_query_values
from pollwise.settings.sections import LOG_FORMATS, LOG_LEVELS

LOGGER = logging.getLogger("pollwise")


@pytest.fixture(autouse=True)
def libraries_as_before() -> Iterator[None]:
    libraries = {name: logging.getLogger(name).level for name in logs.LIBRARIES}
    yield
    for name, kept in libraries.items():
        logging.getLogger(name).setLevel(kept)
    for logger in logging.getLogger().manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.disabled = False  # a dictConfig disabled them


def written(monkeypatch: pytest.MonkeyPatch, level: str, style: str, **given: Any) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.set_up(level, style, **given)
    return stream


def test_the_settings_know_the_same_words() -> None:
    assert logs.LEVELS == LOG_LEVELS
    assert logs.FORMATS == LOG_FORMATS


@pytest.mark.parametrize(("level", "style"), [("loud", "text"), ("info", "xml")])
def test_other_words_are_refused(level: str, style: str) -> None:
    handlers = LOGGER.handlers[:]
    with pytest.raises(ConfigError, match="is not one of"):
        logs.set_up(level, style)
    assert LOGGER.handlers == handlers


def test_set_up_again_does_not_log_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    first = written(monkeypatch, "info", "text")
    stream = written(monkeypatch, "info", "text")
    LOGGER.info("once")
    assert first.getvalue() == ""
    assert stream.getvalue().count("once") == 1


def test_text_has_time_level_action_and_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, "info", "text")
    Events().emit(
        WorkerStarted("q", "w", ("a", "b"), 8, "Adaptive(min_interval=0.1, max_interval=5.0)")
    )
    line = stream.getvalue()
    assert line.endswith(
        " INFO worker_started source=q worker=w kinds=a,b concurrency=8 "
        "strategy='Adaptive(min_interval=0.1, max_interval=5.0)'\n"
    )


@pytest.mark.parametrize("level", logs.LEVELS)
def test_what_is_below_the_level_is_left_out(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, level, "json")
    for each in logs.LEVELS:
        LOGGER.log(logging.getLevelNamesMapping()[each.upper()], each)
    told = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert told == list(logs.LEVELS[logs.LEVELS.index(level) :])


def entries(stream: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    for entry in found:
        assert entry.pop("time").endswith("+00:00")
    return found


def test_json_is_one_object_a_line_with_its_action(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, "debug", "json")
    events = Events()
    events.emit(JobDead("q", "w", "1", "greet", 5, "line\nline \x1b[31m ünï"))
    events.emit(PollFinished("q", 0, 8, 0.1, 0.1, 0.1, 0.0, False))
    LOGGER.info("plain %s", "words")
    try:
        raise ValueError("no")
    except ValueError:
        LOGGER.exception("failed", extra={"odd": object()})
    dead, plain, failed = entries(stream)
    assert dead == {
        "level": "error", "action": "job_dead", "source": "q", "worker": "w", "job": "1",
        "kind": "greet", "attempt": 5, "error": "line\nline \x1b[31m ünï",
    }  # fmt: skip
    assert plain == {"level": "info", "action": "log", "message": "plain words"}
    assert failed.pop("exception").endswith("ValueError: no")
    assert failed == {"level": "error", "action": "log", "message": "failed"}


def test_a_field_that_json_does_not_know_is_told_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, "info", "json")
    LOGGER.info("x", extra={"action": "odd", "fields": {"value": {1}}})
    assert entries(stream) == [{"level": "info", "action": "odd", "value": "{1}"}]


def test_what_libraries_say_has_the_same_form_and_no_queries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = logging.getLogger("some.library")
    for style in ("json", "text"):
        stream = written(monkeypatch, "debug", style, libraries=True)
        library.info("chatter")
        library.warning('"GET %s" was odd?', "/api/jobs?token=hunter2&x=1")
        [line] = stream.getvalue().splitlines()
        said = '"GET /api/jobs?…" was odd?'
        if style == "json":
            entry = json.loads(line)
            assert (entry["action"], entry["level"]) == ("log", "warning")
            assert (entry["logger"], entry["message"]) == ("some.library", said)
        else:
            assert line.endswith(f" WARNING some.library: {said}")
    stream = written(monkeypatch, "error", "text", libraries=True)
    library.warning("not that bad")
    assert stream.getvalue() == ""


def test_libraries_are_left_alone_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before = root.handlers[:]
    written(monkeypatch, "info", "text")
    assert root.handlers == before


CONFIGURED = {
    "version": 1,  # disable_existing_loggers is True by default
    "handlers": {"own": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr"}},
    "root": {"handlers": ["own"], "level": "WARNING"},
}


def test_a_dict_config_does_not_silence_us_unless_it_names_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = written(monkeypatch, "info", "json")
    logging.config.dictConfig(CONFIGURED)
    Events().emit(WorkerStarted("q", "w", ("a",), 8, "Adaptive()"))
    assert [entry["action"] for entry in entries(stream)] == ["worker_started"]
    logs.show_users_records("info", "json")
    assert len(logging.getLogger().handlers) == 1, "their configuration stays as it is"
    named = {"pollwise": {"handlers": ["own"], "level": "ERROR", "propagate": False}}
    logging.config.dictConfig(CONFIGURED | {"loggers": named})
    Events().emit(WorkerStarted("q", "w", ("a",), 8, "Adaptive()"))
    assert len(stream.getvalue().splitlines()) == 1


def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh process: pytest and other tests have handlers of their own."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            monkeypatch.setattr(logger, "handlers", [])


def test_what_handlers_log_shows_if_nothing_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_configured(monkeypatch)
    stream = written(monkeypatch, "info", "json")
    logs.show_users_records("info", "json")
    shop = logging.getLogger("shop.jobs")
    shop.debug("too much")
    shop.info("paid, see /orders?id=7")
    logging.getLogger("httpx").info("HTTP Request: GET /poll")
    logging.getLogger("httpx").warning("GET /poll?token=hunter2 failed")
    assert [(entry["logger"], entry["message"]) for entry in entries(stream)] == [
        ("shop.jobs", "paid, see /orders?id=7"),
        ("httpx", "GET /poll?… failed"),
    ]


def test_what_handlers_log_is_left_to_their_own_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_configured(monkeypatch)
    monkeypatch.setattr(logging.getLogger("shop"), "handlers", [logging.StreamHandler()])
    written(monkeypatch, "info", "text")
    logs.show_users_records("info", "text")
    assert logging.root.handlers == []


def test_a_line_has_a_time_zone_and_says_which_queue_is_meant() -> None:
    """A password is hidden, and so is what nobody knows; the queue is not."""
    url = "redis://:hunter2@cache/0?queue=mail&outbox=shop&apikey=hunter3&page=hunter4"
    assert without_query_values(url) == (
        "redis://:***@cache/0?queue=mail&outbox=shop&apikey=***&page=***"
    )
    record = logging.LogRecord("httpx", logging.INFO, "", 0, "GET %s", (url,), None)
    logs.without_queries(record)
    assert record.getMessage().endswith("cache/0?queue=mail&outbox=shop…")
    record.created = 1_700_000_000.5
    line = logs.TextLines("%(asctime)s %(message)s").format(record)
    when = datetime.fromisoformat(line[:29])
    assert when.utcoffset() is not None
    assert when.timestamp() == record.created
