"""The alert rules: what fires and what does not, by promtool, and what the runbooks name."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import typer

from pollwise.cli.app import app
from pollwise.observe.rules import FILE, RULES, AlertRule, files, runbook
from tests.cli.console import good, pollwise
from tests.observe.test_dashboards import grouped, metric_of, selectors
from tests.support.servers import debian

WHERE = "https://wiki.example/{page}"
BY_NAME = {rule.name: rule for rule in RULES}
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


class Case(NamedTuple):
    """Series by name, as promtool writes them, a sample a minute for an hour; evaluated at 40 min.

    fires: with what labels and what summary. calm: series that must not fire.
    """

    labels: dict[str, str]
    summary: str
    fires: dict[str, str]
    calm: dict[str, str]


STARTABLE = 'pollwise_queue_startable{queue="q",kind="k"}'
STARTABLE_AGE = 'pollwise_queue_startable_age_seconds{queue="q",kind="k"}'
READY = 'pollwise_queue_depth{queue="q",kind="k",state="ready"}'
Q, QK = '{queue="q"}', '{queue="q",kind="k"}'
OPEN_BREAKERS = 'pollwise_fleet_breakers{type="http",group="g",state="open"}'
OL = '{outbox="o",lane=""}'
T = '{type="http",group="g"}'
KIND, QUEUE = {"queue": "q", "kind": "k"}, {"queue": "q"}
GROUP = {"type": "http", "group": "g"}


def _runs(done: str, retried: str) -> dict[str, str]:
    name = "pollwise_worker_job_total"
    return {
        f'{name}{{queue="q",kind="k",result="done"}}': done,
        f'{name}{{queue="q",kind="k",result="retried"}}': retried,
    }


def _pace(found: str, interval: str, ready: str) -> dict[str, str]:
    return {
        f"pollwise_worker_found_total{Q}": found,
        f"pollwise_worker_poll_interval_seconds{Q}": interval,
        STARTABLE: ready,
    }


def _polls(failed: str, succeeded: str) -> dict[str, str]:
    return {
        f"pollwise_worker_poll_failed_total{Q}": failed,
        f"pollwise_worker_poll_total{Q}": succeeded,
    }


def _agents(ready: str, online: str) -> dict[str, str]:
    return {
        'pollwise_controller_jobs{queue="q",state="ready"}': ready,
        'pollwise_controller_workers{queue="q",state="online"}': online,
    }


DEAD = 'pollwise_queue_depth{queue="q",kind="k",state="dead"}'
OFFLINE = 'pollwise_controller_workers{queue="q",state="offline"}'
DEAD_RECORDS = 'pollwise_outbox_records{outbox="o",lane="",state="dead"}'
FAILED = 'pollwise_fleet_notice_total{channel="ops",result="failed"}'
CASES = {
    "PollwiseQueueStuck": Case(
        KIND,
        "Jobs of kind k in queue q have waited for 40m 0s.",
        {STARTABLE_AGE: "0+60x60"},
        # A kind that is paused, or waits for its rate: old jobs, of which none may start.
        {
            STARTABLE_AGE: "300+0x35 900+0x1 0+0x25",
            f"pollwise_queue_oldest_age_seconds{QK}": "0+60x60",
        },
    ),
    "PollwiseDeadJobs": Case(
        KIND, "Dead jobs of kind k in queue q: 2.", {DEAD: "2+0x60"}, {DEAD: "0+0x60"}
    ),
    "PollwiseKindFails": Case(
        KIND, "75% of the runs of kind k in queue q fail.",
        _runs("0+1x60", "0+3x60"), _runs("0+3x60", "0+1x60"),
    ),
    "PollwiseKindUnhandled": Case(
        KIND, "No worker handles the kind k of queue q.",
        # As in a real scrape, there is nothing before the 1.
        {f"pollwise_worker_kind_unhandled{QK}": "_x30 1+0x30", READY: "3+0x60"},
        {f"pollwise_worker_kind_unhandled{QK}": "1+0x60", READY: "3+0x38 0+0x22"},
    ),
    "PollwiseQueueUnmeasured": Case(
        QUEUE, "Queue q was last measured 25m 0s ago.",
        {f"pollwise_queue_measured_timestamp_seconds{Q}": "0+60x15"},
        {f"pollwise_queue_measured_timestamp_seconds{Q}": "0+60x35"},
    ),
    "PollwiseScheduleLate": Case(
        {"queue": "q", "schedule": "s"},
        "The schedule s of queue q is late by 40m 0s.",
        {'pollwise_queue_schedule_late_seconds{queue="q",schedule="s"}': "0+60x60"},
        {'pollwise_queue_schedule_late_seconds{queue="q",schedule="s"}': "0+60x1 0+0x58"},
    ),
    "PollwisePollsFail": Case(
        QUEUE, "Every poll of queue q fails.",
        _polls("0+2x60", "9+0x60"), _polls("0+2x60", "0+1x60"),
    ),
    "PollwiseBreakerOpen": Case(
        KIND, "The breaker of kind k in queue q is open.",
        {f"pollwise_worker_breaker_state{QK}": "2+0x60"},
        {f"pollwise_worker_breaker_state{QK}": "2+0x37 0+0x22"},
    ),
    "PollwiseHintsUnproven": Case(
        QUEUE, "No hints reach the workers of queue q.",
        {f"pollwise_worker_hints_proven{Q}": "0+0x60"},
        {f"pollwise_worker_hints_proven{Q}": "0+0x30 1+0x30"},
    ),
    "PollwisePaceAtMax": Case(
        QUEUE,
        "Workers of queue q poll at their longest interval, and find nothing, while jobs may "
        "start.",
        _pace("5+0x60", "1+0x10 5+0x50", "3+0x60"), _pace("5+0x60", "1+0x10 5+0x50", "0+0x60"),
    ),
    "PollwiseBackoffs": Case(
        QUEUE, "The workers of queue q back off 120 times a minute.",
        {f"pollwise_worker_backoff_total{Q}": "0+120x60"},
        {f"pollwise_worker_backoff_total{Q}": "0+60x60"},
    ),
    "PollwiseLoopBlocked": Case(
        QUEUE, "A handler blocked the event loop of a worker of queue q.",
        {f"pollwise_worker_loop_blocked_total{Q}": "0+0x35 1+0x25"},
        {f"pollwise_worker_loop_blocked_total{Q}": "4+0x60"},
    ),
    "PollwiseOutboxLag": Case(
        {"outbox": "o"}, "The oldest record of outbox o has waited for 40m 0s.",
        {f"pollwise_outbox_oldest_age_seconds{OL}": "0+60x60"},
        {f"pollwise_outbox_oldest_age_seconds{OL}": "200+0x60"},
    ),
    "PollwiseOutboxKeysBlocked": Case(
        {"outbox": "o"}, "Keys of outbox o that a dead record blocks: 2.",
        {f"pollwise_outbox_keys_blocked{OL}": "2+0x60"},
        {f"pollwise_outbox_keys_blocked{OL}": "0+0x60"},
    ),
    "PollwiseOutboxDeadRecords": Case(
        {"outbox": "o"}, "Dead records of outbox o: 2.",
        {DEAD_RECORDS: "2+0x60", f"pollwise_outbox_keys_blocked{OL}": "0+0x60"},
        {DEAD_RECORDS: "2+0x60", f"pollwise_outbox_keys_blocked{OL}": "1+0x60"},
    ),
    "PollwiseOutboxUnmeasured": Case(
        {"outbox": "o"}, "Outbox o was last measured 20m 0s ago: does a relay run?",
        {'pollwise_outbox_measured_timestamp_seconds{outbox="o"}': "0+60x20"},
        {'pollwise_outbox_measured_timestamp_seconds{outbox="o"}': "0+60x60"},
    ),
    "PollwiseOutboxBreakerOpen": Case(
        {"outbox": "o", "handler": "h"}, "The breaker of handler h in outbox o is open.",
        {'pollwise_outbox_breaker_state{outbox="o",handler="h"}': "2+0x60"},
        {'pollwise_outbox_breaker_state{outbox="o",handler="h"}': "1+0x60"},
    ),
    "PollwiseAgentsOffline": Case(
        QUEUE, "Agents of the controller for q that are offline: 3.", {OFFLINE: "3+0x60"},
        {OFFLINE: "0+0x35 1+0x25"},
    ),
    "PollwiseNoAgents": Case(
        QUEUE, "No agent of the controller for q is online. Jobs that wait: 4.",
        _agents("4+0x60", "0+0x60"), _agents("4+0x60", "1+0x60"),
    ),
    "PollwiseTargetDown": Case(
        GROUP, "Targets of type http in group g that are down: 2.",
        {f"pollwise_fleet_down_targets{T}": "2+0x60"},
        {f"pollwise_fleet_down_targets{T}": "0+0x60"},
    ),
    "PollwiseTargetBreakerOpen": Case(
        GROUP, "Targets of type http in group g whose breaker is open: 2.",
        {OPEN_BREAKERS: "2+0x60"}, {OPEN_BREAKERS: "0+0x60"},
    ),
    "PollwiseTargetStale": Case(
        GROUP, "Targets of type http in group g that are older than they should be: 2.",
        {f"pollwise_fleet_stale_targets{T}": "2+0x60"},
        {f"pollwise_fleet_stale_targets{T}": "0+0x35 2+0x25"},
    ),
    "PollwiseFleetBudgetShort": Case(
        GROUP, "Targets of type http in group g whose polls are overdue: 7.",
        {f"pollwise_fleet_overdue{T}": "7+0x60"}, {f"pollwise_fleet_overdue{T}": "0+0x38 7+0x22"},
    ),
    "PollwiseNoticesFail": Case(
        {"channel": "ops"}, "Notices by channel ops fail: nobody receives alerts by it.",
        # An attempt every five minutes, as of one notice after some time.
        {FAILED: "0+0x4 1+0x4 2+0x4 3+0x4 4+0x4 5+0x4 6+0x4 7+0x4 8+0x4"},
        {FAILED: "0+0x20 2+0x40"},
    ),
}  # fmt: skip


def test_every_rule_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert list(CASES) == list(BY_NAME)


def promtool(*words: object) -> None:
    ended = subprocess.run([debian("promtool"), *map(str, words)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_prometheus_reads_the_rules_and_each_fires_when_it_should(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(files(WHERE)[FILE])
    promtool("check", "rules", tmp_path / FILE)
    tests = [
        _unit_test(name, series, [expected])
        for name, case in CASES.items()
        for series, expected in ((case.fires, _alert(BY_NAME[name], case)), (case.calm, None))
    ]
    # JSON is also YAML.
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": [FILE], "tests": tests}))
    promtool("test", "rules", tmp_path / "tests.yml")


def _unit_test(name: str, series: dict[str, str], expected: list[Any]) -> dict[str, Any]:
    alerts = [each for each in expected if each]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [{"eval_time": "40m", "alertname": name, "exp_alerts": alerts}],
    }


def _alert(rule: AlertRule, case: Case) -> dict[str, Any]:
    annotations = {
        "summary": case.summary,
        "description": rule.meaning,
        "runbook_url": WHERE.replace("{page}", rule.page),
    }
    labels = {**case.labels, "severity": rule.severity}
    return {"exp_labels": labels, "exp_annotations": annotations}


@each_rule
def test_rules_are_about_metrics_and_labels_that_exist(rule: AlertRule) -> None:
    parsed = promql_parser.parse(rule.expr)
    for selector in selectors(parsed):
        metric = metric_of(selector.name or "")
        assert metric is not None, f"there is no metric {selector.name}"
        assert {each.name for each in selector.matchers.matchers} <= set(metric.labels)
    kept: set[str] = set()
    for by, inner in grouped(parsed):
        kept |= by
        for selector in selectors(inner):
            metric = metric_of(selector.name or "")
            assert metric is not None
            assert by <= set(metric.labels)
    assert set(re.findall(r"\$labels\.(\w+)", rule.summary)) <= kept
    for name in re.findall(r"pollwise_\w+", runbook(rule)):
        assert metric_of(name) is not None, f"the runbook names {name}"


@each_rule
def test_commands_of_runbooks_exist(rule: AlertRule) -> None:
    for text in re.findall(r"`pollwise ([^`]+)`", runbook(rule)):
        command: Any = typer.main.get_command(app)
        context, words = (
            command.make_context("pollwise", [], resilient_parsing=True),
            shlex.split(text),
        )
        while hasattr(command, "resolve_command"):
            name, command, words = command.resolve_command(context, words)
            assert command is not None, f"there is no command {text!r}"
            if not words or hasattr(command, "resolve_command"):
                context = command.make_context(name, [], parent=context, resilient_parsing=True)
        options = {each for param in command.params for each in param.opts}
        given = {each for each in words if each.startswith("-")}
        assert given <= options, f"{text}: {given - options}"
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        assert len([e for e in arguments if e.required]) <= len(words) or not words, text


# The command


def test_the_command_writes_rules_and_runbooks(tmp_path: Path) -> None:
    folder = tmp_path / "alerts"
    written = good("observe", "alerts", folder, "--json").json()["written"]
    assert written == [str(folder / name) for name in files("")]
    for rule in RULES:
        page = folder / "runbooks" / f"{rule.page}.md"
        assert page.read_text() == runbook(rule)
        assert page.as_uri() in (folder / FILE).read_text()
    good("observe", "alerts", folder, "--force", "--runbooks", "https://wiki.example/")
    assert '"https://wiki.example/queue-stuck"' in (folder / FILE).read_text()
    good("observe", "alerts", folder, "--force", "--runbooks", "https://wiki.example/{page}.html")
    assert '"https://wiki.example/queue-stuck.html"' in (folder / FILE).read_text()
    refused = pollwise("observe", "alerts", folder, "--runbooks", "wiki")
    assert refused.code == 2
    assert "--runbooks 'wiki' must be a URL" in refused.err
