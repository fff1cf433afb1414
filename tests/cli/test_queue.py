"""`pollwise queue …`."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import STATES, NewJob, Progress, Settlement
from tests.cli.console import files, good, pollwise

URL = "sqlite:///jobs.db"
HOSTILE = "[red]x[/red] \x1b[31mred\x1b[0m \x9b2J \u202eback\nnext"


def bury(*errors: str, kind: str = "greet") -> list[str]:
    """Put jobs, claim them and settle them as dead; returns their ids."""

    async def main() -> list[str]:
        async with SqliteQueue("jobs.db") as queue:
            ids = await queue.put([NewJob(kind, number) for number, _ in enumerate(errors)])
            claims = await queue.claim("w", len(errors), "1m", kinds=[kind])
            await queue.settle(
                Settlement.dead(claim, error) for claim, error in zip(claims, errors, strict=True)
            )
            return ids

    return asyncio.run(main())


def test_a_job_is_put_and_shown() -> None:
    began = time.time()
    words = ["--key", "k", "--priority", "3", "--delay", "5m", "--unique", "u"]
    words += ["--header", "trace=a=b", "--header", "from="]
    assert good("queue", "put", URL, "greet", '{"name": "Ann"}', *words).out == "1\n"
    fact = good("queue", "show", URL, "1", "--json").json()
    assert began <= fact.pop("created_at") <= time.time()
    assert began + 300 <= fact.pop("run_at") <= time.time() + 300
    assert fact.pop("since") > 0
    assert fact == {
        "id": "1", "queue": "default", "kind": "greet", "payload": {"name": "Ann"}, "key": "k",
        "priority": 3, "attempt": 0, "unique": "u", "state": "delayed", "worker": None,
        "headers": {"trace": "a=b", "from": ""}, "claimed_at": None, "progress": None,
        "cancel": False, "errors": [], "result": None, "unreadable": None,
    }  # fmt: skip
    shown = good("queue", "show", URL, "1").out
    assert 'payload    {"name": "Ann"}\n' in shown
    assert "headers    trace=a=b\n           from=\n" in shown
    for name in ("worker", "claimed_at", "progress", "cancel", "errors", "result"):
        assert f"{name:<11}–\n" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [(["trace"], "name=value"), (["a=1", "a=2"], "given twice"), (["=1"], "the name of a header")],
)
def test_bad_headers_are_refused(words: list[str], says: str) -> None:
    options = [option for word in words for option in ("--header", word)]
    refused = pollwise("queue", "put", URL, "greet", *options)
    assert (refused.code, refused.out) == (2, "")
    assert says in refused.err


def test_the_record_of_a_job_is_shown() -> None:
    async def main() -> list[str]:
        async with SqliteQueue("jobs.db", keep="1d") as queue:
            ids = await queue.put([NewJob("greet", n) for n in range(2)])
            for _ in range(2):
                claims = await queue.claim("box-1", 2, "1m")
                await queue.settle(
                    [Settlement.retry(c, error=f"no {c.job.attempt}") for c in claims]
                )
            [done, running] = await queue.claim("box-1", 2, "1m")
            told = {c.job.id: Progress(0.25, "halving") for c in (done, running)}
            await queue.renew([done, running], "1m", told)
            await queue.settle([Settlement.done(done, {"lines": 7})])
            await queue.cancel([running.job.id])
            return ids

    done, running = asyncio.run(main())
    fact = good("queue", "show", URL, done, "--json").json()
    assert (fact["state"], fact["worker"], fact["result"]) == ("done", "box-1", {"lines": 7})
    assert [(e["attempt"], e["error"]) for e in fact["errors"]] == [(1, "no 1"), (2, "no 2")]
    assert (fact["progress"]["fraction"], fact["progress"]["note"]) == (0.25, "halving")
    assert fact["created_at"] <= fact["claimed_at"] <= fact["progress"]["at"] <= fact["since"]
    assert not {"token", "claim", "receipt"} & set(fact)
    shown = good("queue", "show", URL, running).out
    assert "cancel     asked for\n" in shown
    assert "progress   25%  halving  at " in shown
    first, second = shown.partition("errors     ")[2].splitlines()[:2]
    assert first.endswith("  attempt 1  no 1")
    assert second.startswith(" " * 11)
    assert second.endswith("  attempt 2  no 2")
    assert 'result     {"lines": 7}\n' in good("queue", "show", URL, done).out


def test_the_payload_is_null_unless_given_or_read() -> None:
    good("queue", "put", URL, "greet")
    good("queue", "put", URL, "greet", "-", stdin='{"from": "日本"}'.encode())
    payloads = [fact["payload"] for fact in good("queue", "list", URL, "--json").json()]
    assert payloads == [None, {"from": "日本"}]


def test_unique_puts_once() -> None:
    first = good("queue", "put", URL, "greet", "1", "--unique", "u").out
    assert good("queue", "put", URL, "greet", "1", "--unique", "u").out == first
    refused = pollwise("queue", "put", URL, "greet", "2", "--unique", "u")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: ")


def test_queues_of_one_file_are_separate() -> None:
    good("queue", "put", f"{URL}?queue=mail", "greet")
    assert good("queue", "list", URL).out == "no jobs\n"
    assert good("queue", "stats", f"{URL}?queue=mail", "--json").json()["ready"] == 1


def test_stats_count_by_state() -> None:
    good("queue", "put", URL, "greet")
    good("queue", "put", URL, "greet", "--delay", "1h")
    bury("no")
    stats = good("queue", "stats", URL, "--json").json()
    age = stats.pop("oldest_age")
    assert 0 <= age < 60
    assert (stats.pop("paused"), stats.pop("capped")) == ([], [])
    assert stats == dict.fromkeys(STATES, 0) | {"ready": 1, "delayed": 1, "dead": 1}
    text = good("queue", "stats", URL).out
    assert [line.split() for line in text.splitlines()[1:-1]] == [
        [state, str(stats[state])] for state in STATES
    ]
    assert "oldest ready job: waiting for " in text


def test_stats_count_each_kind() -> None:
    good("queue", "put", URL, "b")
    good("queue", "put", URL, "b", "--delay", "1h")
    bury("no", kind="a")
    kinds = good("queue", "stats", URL, "--by-kind", "--json").json()
    assert (kinds["b"].pop("oldest_age") < 60, kinds["a"].pop("oldest_age")) == (True, None)
    seen = {"workers": 0, "paused": False, "capped": []}
    assert kinds["a"] == dict.fromkeys(STATES, 0) | {"dead": 1, "unhandled": False} | seen
    waiting = {"ready": 1, "delayed": 1, "unhandled": True}
    assert kinds["b"] == dict.fromkeys(STATES, 0) | waiting | seen
    header, a, b, nobody = good("queue", "stats", URL, "--by-kind").out.splitlines()
    assert header.split() == ["kind", *STATES, "oldest", "waits", "workers"]
    assert a.split() == ["a", *(str(kinds["a"][state]) for state in STATES), "–", "none"]
    assert b.split()[:-2] == ["b", *(str(kinds["b"][state]) for state in STATES)]
    assert nobody == "no running worker handles: b"
    assert good("queue", "stats", f"{URL}?queue=other", "--by-kind").out == "no jobs\n"


def test_an_empty_queue_has_no_oldest_job() -> None:
    good("queue", "put", f"{URL}?queue=other", "greet")
    assert good("queue", "stats", URL).out.endswith("oldest ready job: none\n")
    assert good("queue", "stats", URL, "--json").json()["oldest_age"] is None


def test_list_filters_by_state_kind_and_page() -> None:
    for kind in ("a", "b", "a", "b", "a"):
        good("queue", "put", URL, kind)
    good("queue", "put", URL, "a", "--delay", "1h")

    def ids(*words: str) -> list[str]:
        return [fact["id"] for fact in good("queue", "list", URL, *words, "--json").json()]

    assert ids() == ["1", "3", "5", "2", "4", "6"], "by kind, then those that run next"
    assert ids("--state", "delayed") == ["6"]
    assert ids("--kind", "b") == ["2", "4"]
    assert ids("--kind", "b", "--kind", "a", "--state", "ready") == ["1", "3", "5", "2", "4"]
    first = good("queue", "list", URL, "--limit", "2")
    after = first.out.split("more may follow: --after ")[1].strip()
    assert ids("--limit", "2", "--after", after) == ["5", "2"]
    bury("no")
    assert ids("--worker", "w") == ["7"]
    assert ids("--worker", "nobody") == []
    page = good("queue", "list", URL, "--limit", "2").out
    assert f"more may follow: --after {after}" in page
    assert "more may follow" not in good("queue", "list", URL, "--limit", "8").out


def test_what_a_job_contains_is_shown_and_not_obeyed() -> None:
    good("queue", "put", URL, "[red]kind[/red]", '"[bold]\\u001b[31m\\u009b2J\\u202e 日本 😀"')
    (job_id,) = bury(HOSTILE)
    views = [
        ["queue", "list", URL],
        ["queue", "list", URL, "--state", "dead"],
        ["queue", "show", URL, job_id],
    ]
    for view in views:
        assert good(*view).out.replace("\n", "").isprintable()
    listed = good("queue", "list", URL).out
    assert "[red]kind[/red]" in listed
    assert '"[bold]\\u001b[31m\\x9b2J\\u202e 日本 😀"' in listed
    shown = good("queue", "show", URL, job_id).out
    [errors] = [line for line in shown.splitlines() if line.startswith("errors")]
    assert errors.endswith(r"attempt 1  [red]x[/red] \x1b[31mred\x1b[0m \x9b2J \u202eback\nnext")
    (fact,) = good("queue", "list", URL, "--state", "dead", "--json").json()
    assert [failure["error"] for failure in fact["errors"]] == [HOSTILE]


def test_a_payload_that_cannot_be_decoded_is_shown_as_its_text(folder: Path) -> None:
    good("queue", "put", URL, "greet", "1")
    good("queue", "put", URL, "greet", "2")
    with closing(sqlite3.connect(folder / "jobs.db")) as connection, connection:
        connection.execute("UPDATE pollwise_jobs SET payload = '{bad' WHERE seq = 1")
    first, second = good("queue", "list", URL, "--json").json()
    assert (first["payload"], second["payload"]) == ("{bad", 2)
    assert first["unreadable"].startswith("its payload cannot be decoded: Expecting property name")
    assert "its payload cannot be decoded" in good("queue", "list", URL).out
    assert "unreadable its payload cannot be decoded" in good("queue", "show", URL, "1").out


def test_a_list_of_very_many_jobs_goes_on_page_by_page() -> None:
    async def fill() -> None:
        async with SqliteQueue("jobs.db", synchronous="off") as queue:
            for _ in range(11):
                await queue.put([NewJob("bulk") for _ in range(1000)])
            await queue.put(NewJob("bulk", priority=5))

    asyncio.run(fill())
    listed = good("queue", "list", URL, "--state", "ready", "--limit", "2", "--json")
    assert [each["id"] for each in listed.json()] == ["11001", "1"]
    more = listed.err.split()[-1]
    words = ["queue", "list", URL, "--state", "ready", "--limit", "2"]
    assert [e["id"] for e in good(*words, "--after", more, "--json").json()] == ["2", "3"]
    assert f"--after {more}" in good(*words).out


def test_a_long_payload_is_cut_in_a_list_and_whole_in_a_view() -> None:
    good("queue", "put", URL, "greet", f'"{"x" * 5000}"')
    assert f'"{"x" * 58}…' in good("queue", "list", URL).out
    assert f'payload    "{"x" * 5000}"\n' in good("queue", "show", URL, "1").out
    (fact,) = good("queue", "list", URL, "--json").json()
    assert fact["payload"] == '"' + "x" * 199
    assert fact["cut"] == ["payload"]
    whole = good("queue", "show", URL, "1", "--json").json()
    assert (whole["payload"], "cut" in whole) == ("x" * 5000, False)


@pytest.mark.parametrize("job_id", ["99", "x", "-1", "1 OR 1", "9" * 30])
def test_a_job_that_is_not_there_is_exit_code_1(job_id: str) -> None:
    good("queue", "put", URL, "greet")
    for option in ([], ["--json"]):
        result = pollwise("queue", "show", *option, "--", URL, job_id)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith(f"error: no job {job_id} in {URL}; ")


def test_dead_jobs_are_listed_with_their_errors() -> None:
    assert good("queue", "put", URL, "other").out == "1\n"
    assert good("queue", "list", URL, "--state", "dead").out == "no jobs\n"
    bury("ValueError: no", "Timeout")
    text = good("queue", "list", URL, "--state", "dead").out
    header, first, second = text.splitlines()
    assert header.split() == [
        "id", "state", "kind", "key", "attempt", "died", "error", "or", "payload",
    ]  # fmt: skip
    assert first.rstrip().endswith("Timeout")
    assert second.rstrip().endswith("ValueError: no")
    assert [
        f["id"]
        for f in good("queue", "list", URL, "--state", "dead", "--limit", "1", "--json").json()
    ] == ["3"]


def test_retry_makes_dead_jobs_ready_again() -> None:
    ids = bury("a", "b", "c")
    assert good("queue", "retry", URL, ids[0]).out == "retried 1 job(s)\n"
    assert good("queue", "retry", URL, "--all", "--json").json() == {"retried": 2}
    facts = good("queue", "list", URL, "--json").json()
    assert [(f["state"], f["attempt"]) for f in facts] == [("ready", 0)] * 3


def test_drop_deletes_dead_jobs_only() -> None:
    ids = bury("a", "b")
    good("queue", "put", URL, "other")
    assert good("queue", "drop", URL, ids[1], ids[1], "--json").json() == {"dropped": 1}
    assert good("queue", "drop", URL, "--all").out == "dropped 1 job(s)\n"
    assert [f["kind"] for f in good("queue", "list", URL, "--json").json()] == ["other"]


@pytest.mark.parametrize("what", ["retry", "drop"])
def test_ids_that_are_not_dead_jobs_are_exit_code_1(what: str) -> None:
    (job_id,) = bury("a")
    good("queue", "put", URL, "other")
    result = pollwise("queue", what, URL, job_id, "2", "nonsense", "--json")
    assert result.code == 1
    assert list(result.json().values()) == [1]
    which = "ended" if what == "retry" else "dead"
    assert result.err == f"error: not {which} jobs in this queue: 2, nonsense\n"


def test_cancel_ends_what_waits_and_asks_the_worker_of_what_runs() -> None:
    url = f"{URL}?keep=1d"

    async def claim() -> str:
        async with SqliteQueue("jobs.db") as queue:
            [claim] = await queue.claim("box-1", 1, "1m")
            return claim.job.id

    for _ in range(3):
        good("queue", "put", url, "greet")
    assert asyncio.run(claim()) == "1"
    text = good("queue", "cancel", url, "1", "2").out
    assert [line.split()[:2] for line in text.splitlines()] == [["1", "runs;"], ["2", "cancelled"]]
    states = good("queue", "cancel", url, "3", "2", "--json").json()
    assert states == {"3": "cancelled", "2": "cancelled"}, "twice is once"
    assert good("queue", "stats", url, "--json").json()["cancelled"] == 2
    assert good("queue", "show", url, "1", "--json").json()["cancel"] is True
    assert good("queue", "retry", url, "2").out == "retried 1 job(s)\n"
    (dead,) = bury("no", kind="other")
    refused = pollwise("queue", "cancel", url, dead, "3", "nonsense", "--json")
    assert (refused.code, refused.json()) == (1, {dead: "dead", "3": "cancelled"})
    assert refused.err.endswith(f"had ended or do not exist: {dead}, nonsense\n")
    assert "dead; it had ended" in pollwise("queue", "cancel", url, dead).out


def test_filters_narrow_lists_and_actions() -> None:
    bury("Timeout after 3 s", "ValueError: no", "timeout", kind="mail")
    good("queue", "put", URL, "other", "--key", "k")
    good("queue", "put", URL, "other")

    def ids(*words: str) -> list[str]:
        return sorted(fact["id"] for fact in good("queue", "list", URL, *words, "--json").json())

    assert ids("--error", "TIMEOUT") == ["1", "3"]
    assert ids("--key", "k") == ["4"]
    assert ids("--older-than", "1h") == []
    assert ids("--newer-than", "1h", "--state", "dead") == ["1", "2", "3"]
    text = good("queue", "list", URL, "--error", "timeout", "--limit", "1").out
    after = text.splitlines()[-1].removeprefix("more may follow: --after ")
    rest = good("queue", "list", URL, "--error", "timeout", "--after", after).out
    assert len(rest.splitlines()) == 2

    asked = pollwise("queue", "retry", URL, "--error", "timeout")
    assert asked.code != 0
    assert "add --yes" in asked.err
    retried = good("queue", "retry", URL, "--error", "timeout", "--yes", "--json").json()
    assert retried == {"retried": 2}
    assert good("queue", "drop", URL, "--kind", "mail", "--yes").out == "dropped 1 job(s)\n"
    assert good("queue", "cancel", URL, "--kind", "other", "--yes").out == "cancelled 2 job(s)\n"
    assert ids() == ["1", "3"]
    for words in (["drop", URL, "1", "--kind", "a"], ["cancel", URL], ["retry", URL, "--all", "1"]):
        refused = pollwise("queue", *words)
        assert refused.code != 0
        assert "give job ids" in refused.err
    assert pollwise("queue", "drop", URL, "--state", "ready", "--yes").code != 0


def test_result_prints_json_and_tells_failures_apart() -> None:
    async def work() -> None:
        async with SqliteQueue("jobs.db") as queue:
            await queue.put([NewJob("greet", n) for n in range(3)])
            first, second, _ = await queue.claim("w", 3, "1m")
            where = 'File "greet.py", line 7, in greet'
            await queue.settle(
                [
                    Settlement.done(first, {"a": [1]}, keep="1h"),
                    Settlement.dead(second, "ValueError: no\x1b[31m", where),
                ]
            )

    asyncio.run(work())
    assert good("queue", "result", URL, "1").json() == {"a": [1]}
    dead = pollwise("queue", "result", URL, "2", "--timeout", "1m")
    assert (dead.code, dead.out) == (1, "")
    assert "job 2 of kind greet is dead: ValueError: no" in dead.err
    assert "greet.py" in dead.err
    assert "\x1b" not in dead.err
    assert "greet.py" in good("queue", "show", URL, "2").out
    assert good("queue", "show", URL, "2", "--json").json()["errors"][0]["traceback"]
    late = pollwise("queue", "result", URL, "3", "--timeout", "10ms")
    assert (late.code, late.out) == (3, "")
    assert "job 3 has not ended within 10ms" in late.err
    gone = pollwise("queue", "result", URL, "4")
    assert gone.code == 1
    assert "does not exist" in gone.err


def test_reading_a_queue_changes_nothing(folder: Path) -> None:
    bury("a")
    before = files(folder)
    for words in (["stats"], ["list"], ["list", "--state", "dead"]):
        good("queue", *words, URL)
    good("queue", "show", URL, "1")
    assert files(folder) == before
