"""Alert rules for Prometheus, each with its runbook.

`pollwise observe alerts` writes the rules and the runbooks; the docs show the runbooks. Each rule
is about something that a person has to act on. Each says how long its condition must hold, so that
a restart or a short burst does not alert.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

FILE = "pollwise.rules.yml"
FOLDER = "runbooks"
#: Stands for the name of a runbook in an address.
PAGE = "{page}"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert.

    lasting: how long the condition holds before the alert fires.
    summary: the text of the alert; a template of Prometheus.
    meaning, look, do: the sections of its runbook.
    """

    name: str
    expr: str
    lasting: str
    severity: Literal["warning", "critical"]
    summary: str
    meaning: str
    look: tuple[str, ...]
    do: tuple[str, ...]

    @property
    def page(self) -> str:
        """The name of its runbook, without an ending: `queue-stuck`."""
        return re.sub("(?<=[a-z])(?=[A-Z])", "-", self.name.removeprefix("Pollwise")).lower()


#: The targets of a series, in a summary; the group may be empty.
_TARGETS = "Targets of type {{ $labels.type }}{{ with $labels.group }} in group {{ . }}{{ end }}"

#: The metrics of queues come from `pollwise queue export`, or from a worker that exports its queue.
RULES: tuple[AlertRule, ...] = (
    AlertRule(
        "PollwiseQueueStuck",
        "max by (queue, kind) (pollwise_queue_startable_age_seconds) > 600",
        "5m",
        "critical",
        "Jobs of kind {{ $labels.kind }} in queue {{ $labels.queue }} have waited for "
        "{{ $value | humanizeDuration }}.",
        "The oldest job that may start now has waited for more than ten minutes. Either nothing "
        "claims it, or more work arrives than the workers can do. Jobs that a pause, a limit or an "
        "open breaker holds back do not count.",
        (
            (
                "`pollwise queue stats URL --by-kind`: is one kind waiting, or all of them? A kind "
                "that is marked has no running handler."
            ),
            "`pollwise queue workers URL`: does a worker run, and does it poll?",
            "`pollwise_worker_job_running` and the concurrency: are all workers busy?",
        ),
        (
            "Start workers, or deploy the handler of the kind.",
            "If all workers are busy, raise the concurrency or add workers.",
        ),
    ),
    AlertRule(
        "PollwiseDeadJobs",
        'max by (queue, kind) (pollwise_queue_depth{state="dead"}) > 0',
        "5m",
        "warning",
        "Dead jobs of kind {{ $labels.kind }} in queue {{ $labels.queue }}: {{ $value }}.",
        "Jobs failed in all their attempts, or cannot be decoded. They stay until an operator "
        "retries or drops them.",
        (
            "`pollwise queue list URL --state dead --kind KIND`: the errors.",
            "The job's page in `pollwise web`: all its errors, with tracebacks.",
        ),
        (
            "Fix the cause, then `pollwise queue retry URL --kind KIND`.",
            "Drop what is no longer needed: `pollwise queue drop URL --kind KIND`.",
        ),
    ),
    AlertRule(
        "PollwiseKindFails",
        'sum by (queue, kind) (rate(pollwise_worker_job_total{result=~"retried|dead"}[10m]))'
        " / sum by (queue, kind) "
        '(rate(pollwise_worker_job_total{result=~"done|retried|dead"}[10m])) > 0.5'
        " and sum by (queue, kind) "
        '(increase(pollwise_worker_job_total{result=~"retried|dead"}[10m])) > 5',
        "5m",
        "warning",
        "{{ $value | humanizePercentage }} of the runs of kind {{ $labels.kind }} in queue "
        "{{ $labels.queue }} fail.",
        "More than half of the runs of a kind fail, and more than five failed in ten minutes.",
        (
            "`pollwise queue list URL --kind KIND`: the last error of each job.",
            "What changed: a deployment of the handler, or of what it calls?",
        ),
        (
            "Pause the kind while you fix it: `pollwise queue pause URL KIND`. Its jobs wait.",
            "Give the handler a breaker, so that an outage of what it calls uses no attempts.",
        ),
    ),
    AlertRule(
        "PollwiseKindUnhandled",
        "max by (queue, kind) (pollwise_worker_kind_unhandled) == 1"
        " unless on (queue, kind) max by (queue, kind) (pollwise_worker_job_running)"
        " unless on (queue, kind) "
        '(max by (queue, kind) (pollwise_queue_depth{state="ready"}) == 0)',
        "5m",
        "warning",
        "No worker handles the kind {{ $labels.kind }} of queue {{ $labels.queue }}.",
        "Jobs of a kind wait, and no worker that Prometheus scrapes has a handler for it.",
        ("`pollwise queue workers URL`: which kinds do the workers handle?",),
        (
            (
                "Deploy a worker with a handler of this kind, or correct the kind where the jobs "
                "are put."
            ),
        ),
    ),
    AlertRule(
        "PollwiseQueueUnmeasured",
        "time() - max by (queue) "
        "(last_over_time(pollwise_queue_measured_timestamp_seconds[6h])) > 600",
        "5m",
        "warning",
        "Queue {{ $labels.queue }} was last measured {{ $value | humanizeDuration }} ago.",
        "The exporter of this queue does not run, cannot reach the store, or is not scraped. The "
        "alerts about stuck and dead jobs cannot fire. This alert ends six hours after the last "
        "measurement.",
        (
            "The log of `pollwise queue export`: `chore_failed` has the error.",
            "The page of targets in Prometheus: is the exporter scraped?",
        ),
        ("Start `pollwise queue export URL`, or bring the store back.",),
    ),
    AlertRule(
        "PollwiseScheduleLate",
        "max by (queue, schedule) (pollwise_queue_schedule_late_seconds) > 120",
        "5m",
        "critical",
        "The schedule {{ $labels.schedule }} of queue {{ $labels.queue }} is late by "
        "{{ $value | humanizeDuration }}.",
        "The next tick of a schedule is overdue, and no worker has put its job. Any running worker "
        "of the queue can put it.",
        (
            "`pollwise schedule list URL`: which schedules are late?",
            "`pollwise queue workers URL`: does a worker run?",
            "The log of a worker: `chore_failed` with the chore `schedules` has the reason.",
        ),
        (
            "Start a worker of the queue; it puts the missed jobs that `catch_up` asks for.",
            "If the tables are older than the workers, run `pollwise queue migrate URL`.",
            "If the schedule is no longer needed: `pollwise schedule remove URL NAME`.",
        ),
    ),
    AlertRule(
        "PollwisePollsFail",
        "sum by (queue) (rate(pollwise_worker_poll_failed_total[5m])) > 0"
        " unless sum by (queue) (rate(pollwise_worker_poll_total[5m])) > 0",
        "5m",
        "critical",
        "Every poll of queue {{ $labels.queue }} fails.",
        "The workers cannot reach their store, or the store refuses them. Nothing runs.",
        (
            "The log of a worker: `poll_failed` has the error.",
            "`pollwise doctor URL` on the worker's machine.",
        ),
        (
            "Bring the store back. Workers continue within about a minute.",
            "If a password or a certificate changed, restart the workers with the new one.",
        ),
    ),
    AlertRule(
        "PollwiseBreakerOpen",
        "max by (queue, kind) (pollwise_worker_breaker_state) == 2",
        "5m",
        "warning",
        "The breaker of kind {{ $labels.kind }} in queue {{ $labels.queue }} is open.",
        "The jobs of this kind failed several times in a row. They wait; one job at a time is "
        "tried until it succeeds. Meanwhile no attempts are used, also by workers that start: they "
        "share the breaker (on memory, SQLite, Postgres, Redis and `http://` queues).",
        ("The errors of the kind: `pollwise queue list URL --kind KIND`.",),
        (
            "Fix the service that the handler uses. The breaker closes after a success.",
            "To continue at once: `pollwise queue close-breaker URL KIND`, or the queue's page.",
        ),
    ),
    AlertRule(
        "PollwiseHintsUnproven",
        "max by (queue) (pollwise_worker_hints_proven) == 0",
        "15m",
        "warning",
        "No hints reach the workers of queue {{ $labels.queue }}.",
        "The check of the hint channel does not come back. Nothing is lost: the workers poll at "
        "the intervals of their strategy, which costs more polls and a little latency.",
        (
            "The log of a worker: `hints_lost` has the reason and advice.",
            "Postgres: is there a pooler between worker and server? LISTEN needs a session.",
        ),
        ("Follow the advice in the log, for example a direct `listen` URL with PgBouncer.",),
    ),
    AlertRule(
        "PollwisePaceAtMax",
        "sum by (queue) (rate(pollwise_worker_found_total[5m])) == 0"
        " and on (queue) min by (queue) "
        "(min_over_time(pollwise_worker_poll_interval_seconds[5m])"
        " >= max_over_time(pollwise_worker_poll_interval_seconds[1h]))"
        " and on (queue) max by (queue) "
        "(min_over_time(pollwise_queue_startable[5m])) > 0",
        "5m",
        "critical",
        "Workers of queue {{ $labels.queue }} poll at their longest interval, and find nothing, "
        "while jobs may start.",
        "Jobs may start now, but the polls of the workers do not see them: they handle other "
        "kinds, or poll another queue or store.",
        (
            "`pollwise queue workers URL`: queue and kinds of each worker.",
            "`pollwise queue stats URL --by-kind`: kinds without a handler.",
        ),
        ("Correct the URL or the kinds of the workers.",),
    ),
    AlertRule(
        "PollwiseBackoffs",
        "sum by (queue) (rate(pollwise_worker_backoff_total[5m])) * 60 > 100",
        "15m",
        "warning",
        "The workers of queue {{ $labels.queue }} back off {{ $value | humanize }} times a minute.",
        "The interval of the workers grows and is reset again and again: single jobs arrive just "
        "often enough. Most polls are empty, and each costs something.",
        (
            "`pollwise_worker_poll_empty_total` against `pollwise_worker_poll_total`.",
            "The worker's page in `pollwise web`: its intervals as a chart.",
        ),
        (
            (
                "Rehearse another strategy on this queue's traffic: "
                "`pollwise lab record URL FILE`, then `pollwise lab compare FILE`. `worth` states "
                "a goal instead of intervals."
            ),
            "Fewer workers with a higher concurrency poll less.",
        ),
    ),
    AlertRule(
        "PollwiseLoopBlocked",
        "sum by (queue) (increase(pollwise_worker_loop_blocked_total[15m])) > 0",
        "0m",
        "warning",
        "A handler blocked the event loop of a worker of queue {{ $labels.queue }}.",
        "A handler that is `async def` calls a function that blocks. Meanwhile no lease is "
        "renewed, so jobs may run twice.",
        ("The log of the worker: `loop_blocked` has the job and the line.",),
        ("Make the handler a plain `def`: it runs in a thread. Or use `process=True`.",),
    ),
    AlertRule(
        "PollwiseOutboxLag",
        "max by (outbox, lane) (pollwise_outbox_oldest_age_seconds) > 300",
        "5m",
        "critical",
        "The oldest record of outbox {{ $labels.outbox }} has waited for "
        "{{ $value | humanizeDuration }}.",
        "A record that is neither done nor dead is older than five minutes.",
        (
            "`pollwise outbox stats URL`: records by state, and the relays that run.",
            "`pollwise_outbox_record_total` by result: are handlers retrying?",
        ),
        (
            "Start a relay, or fix the receiver that its handlers publish to.",
            "If the relay cannot keep up, raise its concurrency or start a second one.",
        ),
    ),
    AlertRule(
        "PollwiseOutboxKeysBlocked",
        "max by (outbox, lane) (pollwise_outbox_keys_blocked) > 0",
        "5m",
        "warning",
        "Keys of outbox {{ $labels.outbox }} that a dead record blocks: {{ $value }}.",
        "A record is dead, and later records of its key wait behind it, because they must be "
        "published in order.",
        ("`pollwise outbox blocked URL`: the keys, the errors, and how many records wait.",),
        (
            "Fix the cause, then `pollwise outbox retry URL --all`.",
            "To give a record up: `pollwise outbox drop URL ID`. Its key continues.",
        ),
    ),
    AlertRule(
        "PollwiseOutboxDeadRecords",
        'max by (outbox, lane) (pollwise_outbox_records{state="dead"}) > 0'
        " unless on (outbox, lane) max by (outbox, lane) (pollwise_outbox_keys_blocked) > 0",
        "5m",
        "warning",
        "Dead records of outbox {{ $labels.outbox }}: {{ $value }}.",
        "Records failed in all their attempts and were not published. No other records wait for "
        'them: they have no key, or their outbox has `on_dead="continue"`.',
        ("`pollwise outbox list URL --state dead`: the records and their errors.",),
        (
            "Fix the cause, then `pollwise outbox retry URL --all`.",
            "To give a record up: `pollwise outbox drop URL ID`.",
        ),
    ),
    AlertRule(
        "PollwiseOutboxUnmeasured",
        "time() - max by (outbox) "
        "(last_over_time(pollwise_outbox_measured_timestamp_seconds[6h])) > 600",
        "5m",
        "critical",
        "Outbox {{ $labels.outbox }} was last measured "
        "{{ $value | humanizeDuration }} ago: does a relay run?",
        "Relays, and `pollwise outbox export`, measure their outbox once a minute, and none did. "
        "Either none runs, or Prometheus cannot reach them. Records may wait, and the other "
        "alerts about this outbox cannot fire. This alert ends six hours after the last "
        "measurement.",
        (
            "`pollwise outbox stats URL`: records by state, and the relays that run.",
            "The page of targets in Prometheus: is the relay scraped?",
        ),
        ("Start a relay, or correct the addresses that Prometheus scrapes.",),
    ),
    AlertRule(
        "PollwiseOutboxBreakerOpen",
        "max by (outbox, handler) (pollwise_outbox_breaker_state) == 2",
        "5m",
        "warning",
        "The breaker of handler {{ $labels.handler }} in outbox {{ $labels.outbox }} is open.",
        "The handler failed several times in a row: what it publishes to is probably down. Its "
        "records wait.",
        ("The log of the relay: `record_retried` has the errors.",),
        ("Fix the receiver. The breaker closes after a success.",),
    ),
    AlertRule(
        "PollwiseAgentsOffline",
        'sum by (queue) (pollwise_controller_workers{state="offline"}) > 0',
        "10m",
        "warning",
        "Agents of the controller for {{ $labels.queue }} that are offline: {{ $value }}.",
        "A registered worker has sent nothing for longer than the heartbeat timeout. Its jobs went "
        "to others.",
        ("The page of agents in the controller's web interface: which agents, and since when.",),
        ("Start the agent again, or unregister it if its machine is gone.",),
    ),
    AlertRule(
        "PollwiseNoAgents",
        'sum by (queue) (pollwise_controller_jobs{state="ready"}) > 0'
        ' unless on (queue) sum by (queue) (pollwise_controller_workers{state="online"}) > 0',
        "5m",
        "critical",
        "No agent of the controller for {{ $labels.queue }} is online. Jobs that wait: "
        "{{ $value }}.",
        "Jobs are ready, and no agent can take them.",
        ("The network between agents and controller, and the log of one agent.",),
        ("Start agents. Running agents connect again when they can reach the controller.",),
    ),
    AlertRule(
        "PollwiseTargetDown",
        "sum by (type, group) (pollwise_fleet_down_targets) > 0",
        "2m",
        "critical",
        _TARGETS + " that are down: {{ $value }}.",
        "These targets are down: their failures were confirmed.",
        ("`pollwise fleet status`: which targets, since when, and the errors.",),
        (
            "Fix the target. Acknowledge its alert: `pollwise fleet ack ID --note TEXT`.",
            "Announce planned outages: `pollwise fleet maintenance add`.",
        ),
    ),
    AlertRule(
        "PollwiseTargetBreakerOpen",
        'sum by (type, group) (pollwise_fleet_breakers{state="open"}) > 0',
        "1m",
        "warning",
        _TARGETS + " whose breaker is open: {{ $value }}.",
        "These targets failed several times in a row. They are polled less often, so their "
        "recovery is noticed later.",
        (
            "`pollwise fleet status`: which targets, since when, and the errors.",
            "The log of the fleet: `target_breaker_opened` has the target and its error.",
        ),
        (
            "Fix the target. Its breaker closes after a success.",
            "To poll it at once and often again: `pollwise fleet close-breaker NAME`.",
        ),
    ),
    AlertRule(
        "PollwiseTargetStale",
        "sum by (type, group) (pollwise_fleet_stale_targets) > 0",
        "10m",
        "warning",
        _TARGETS + " that are older than they should be: {{ $value }}.",
        "The last success of these targets is older than their interval allows.",
        ("`pollwise fleet check`: are polls late, or do they fail?",),
        ("If polls are late, raise the budget or the concurrency, or add a node.",),
    ),
    AlertRule(
        "PollwiseFleetBudgetShort",
        "sum by (type, group) (pollwise_fleet_overdue) > 0",
        "10m",
        "warning",
        _TARGETS + " whose polls are overdue: {{ $value }}.",
        "Polls are due for longer than five seconds and wait for a slot, their host or the budget: "
        "the fleet needs more polls than it may make.",
        ("`pollwise fleet status`: budget, planned polls a second, slots in use.",),
        (
            "Raise `budget` or `concurrency`, or lengthen `max_interval` and `detect_within`.",
            "Many targets on one host: raise the limit of that host.",
        ),
    ),
    AlertRule(
        "PollwiseNoticesFail",
        'sum by (channel) (increase(pollwise_fleet_notice_total{result="failed"}[30m])) > 3',
        "5m",
        "critical",
        "Notices by channel {{ $labels.channel }} fail: nobody receives alerts by it.",
        "A channel of the fleet's alerts could not send several times in a row. Notices are kept "
        "and sent later.",
        ("The log of the fleet: `notice_failed` has the error.",),
        ("Correct the channel, and try it: `pollwise fleet test-channel NAME`.",),
    ),
)


def files(runbooks: str) -> dict[str, str]:
    """The files of `pollwise observe alerts`, by their paths: the rules, and a runbook for each.

    runbooks: the address of a runbook, with `{page}` in place of its name.
    """
    pages = {f"{FOLDER}/{rule.page}.md": runbook(rule) for rule in RULES}
    return {FILE: _rules_file(runbooks), **pages}


def runbook(rule: AlertRule) -> str:
    """The page of an alert: what it means, what to look at, what to do."""
    return "\n".join(
        [
            f"# {rule.name}",
            "",
            rule.meaning,
            "",
            f"It fires when this holds for {rule.lasting}, with the severity {rule.severity}:"
            if rule.lasting != "0m"
            else f"It fires immediately, with the severity {rule.severity}, when this holds:",
            "",
            "```promql",
            rule.expr,
            "```",
            "",
            "## What to look at",
            "",
            *(f"- {each}" for each in rule.look),
            "",
            "## What to do",
            "",
            *(f"- {each}" for each in rule.do),
            "",
        ]
    )


def _rules_file(runbooks: str) -> str:
    lines = [
        "# Alert rules for Pollwise, written by `pollwise observe alerts`.",
        "groups:",
        "  - name: pollwise",
        "    rules:",
    ]
    for rule in RULES:
        where = runbooks.replace(PAGE, rule.page)
        lines += [
            f"      - alert: {rule.name}",
            "        expr: |-",
            f"          {rule.expr}",
            f"        for: {rule.lasting}",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(rule.summary)}",
            f"          description: {json.dumps(rule.meaning)}",
            f"          runbook_url: {json.dumps(where)}",
        ]
    return "\n".join([*lines, ""])
