"""The page of a flow, and what the page of a job says about its flow."""

from __future__ import annotations

from pollwise.runtime.jobs import NewJob, Progress, Settlement
from tests.web.queue_site import HOSTILE, QueueSite, on_site
from tests.web.test_job import text_of

AT = "/queues/default/jobs/"


async def begun(site: QueueSite) -> list[str]:
    """A flow: a job is done, one of two after it is dead, the other runs, and one joins them."""
    first = NewJob("fetch")
    parts = [NewJob("resize", after=[first]), NewJob(HOSTILE, after=[first])]
    report = NewJob("report", {"to": "ada"}, after=parts)
    alert = NewJob("alert", after=[first, *parts], on_failure=True, delay="1h")
    ids = await site.queue.put([first, *parts, report, alert])
    await site.end(Settlement.done)
    await site.end(Settlement.dead, "no image at https://u:hunter2@x/ " + HOSTILE)
    [claim] = await site.queue.claim("worker-1", 1, "1m")
    await site.queue.renew([claim], "1m", {claim.job.id: Progress(0.4, "tile 4")})
    return ids


@on_site
async def test_a_flow_shows_its_jobs_as_a_tree(site: QueueSite) -> None:
    ids = await begun(site)
    page = await site.get(f"{AT}{ids[3]}/flow")
    shown = text_of(page)
    for each in (
        "5 jobs: 1 delayed 1 blocked 1 leased 1 dead 1 done",
        "fetch 1 done",
        "├─ resize 2 dead",
        f"└─ {HOSTILE[:20]}",
        "tile 4",
        "report 4 blocked 2 , 3",
        "└─ alert 5 delayed in 59 min 1 , 2 , 3 if one is dead",
    ):
        assert each in shown, each
    assert HOSTILE not in page
    assert "hunter2" not in page
    assert 'value="0.4"' in page
    assert f'id="job-{ids[3]}" class="current"' in page
    assert all(f'href="{AT}{each}"' in page for each in ids)


@on_site
async def test_a_job_leads_to_its_flow_and_says_what_it_waits_for(site: QueueSite) -> None:
    ids = await begun(site)
    page = await site.get(AT + ids[3])
    assert f'href="{AT}{ids[3]}/flow"' in page
    assert f"It waits for a job before it that is dead; retry that: job {ids[1]}" in text_of(page)
    assert "Jobs of its flow that wait for it are cancelled" in page
    await site.queue.retry([ids[1]], anyway=True)
    shown = text_of(await site.get(AT + ids[3]))
    assert f"It waits for 2 of 2 jobs before it in its flow: job {ids[1]}" in shown
    alone = await site.put()
    assert f'href="{AT}{alone}/flow"' not in await site.get(AT + alone)
    await site.get(f"{AT}{alone}/flow", 404)
    await site.get(f"{AT}nothing/flow", 404)


@on_site
async def test_a_job_of_a_flow_that_waits_for_its_key_says_so(site: QueueSite) -> None:
    other = await site.put(key="k")
    first = NewJob("first", priority=9)
    ids = await site.queue.put([first, NewJob("second", after=[first], key="k")])
    await site.end(Settlement.done)
    shown = text_of(await site.get(AT + ids[1]))
    assert f"It waits for an earlier job of its key, which is ready: job {other}" in shown


@on_site
async def test_dead_jobs_are_retried_and_a_flow_is_cancelled(site: QueueSite) -> None:
    ids = await begun(site)
    at = f"{AT}{ids[0]}/flow"
    assert "Retry dead jobs anyway…" in await site.get(at)
    await site.post(at, "retry")
    assert f"job {ids[1]} not retried: its failure has started" in await site.get(at)
    assert (await site.job(ids[1])).state == "dead"
    await site.post(at, "retry", anyway="1")
    assert "Dead jobs that run again, with fresh attempts: 1." in await site.get(at)
    assert (await site.job(ids[1])).state == "ready"
    await site.post(at, "retry")
    assert "No job of this flow is dead any more." in await site.get(at)
    await site.post(at, "cancel")
    said = await site.get(at)
    assert "Jobs that were cancelled: 3. Running jobs that were asked to stop: 1." in said
    assert (await site.job(ids[2])).cancel
    assert site.noted == ["retry refused", "retry", "retry refused", "cancel"]
    site.access.scope = "read"
    await site.refused(at, "cancel")


@on_site
async def test_a_flow_that_is_not_shown_whole_shows_the_job_and_acts_on_all(
    site: QueueSite,
) -> None:
    parts = [NewJob("part", n) for n in range(1500)]
    ids = await site.queue.put([*parts, NewJob("join", after=parts)])
    claims = await site.queue.claim("worker-1", 1000, "1m")
    await site.queue.settle([Settlement.done(claim) for claim in claims])
    await site.end(Settlement.dead, "no image")
    at = f"{AT}{ids[-1]}/flow"
    page = await site.get(at)
    assert f'id="job-{ids[-1]}" class="current"' in page
    # 100 jobs before it, and those that hold it up come first.
    assert "1,101 jobs are shown, and there are more: 99 ready 1 blocked 1 dead" in text_of(page)
    assert f'id="job-{ids[1000]}"' in page
    assert f'id="job-{ids[1100]}"' not in page
    assert page.count('<tr id="job-') == 200
    assert "901 more jobs of these are not listed here" in text_of(page)
    page = await site.get(f"{AT}{ids[0]}/flow")
    assert "1,000 jobs are shown, and there are more: 1,000 done" in text_of(page)
    assert "Retry dead jobs" in page
    assert "Cancel the flow" in page
    await site.post(f"{AT}{ids[0]}/flow", "retry")
    assert "Dead jobs that run again, with fresh attempts: 1." in await site.get(at)
    await site.post(f"{AT}{ids[0]}/flow", "cancel")
    assert "Jobs that were cancelled: 501." in await site.get(at)
    assert (await site.queue.stats()).ready == 0


@on_site
async def test_a_job_is_put_again_without_its_flow(site: QueueSite) -> None:
    ids = await begun(site)
    await site.post(AT + ids[3], "again")
    again = await site.job("6")
    assert (again.job.kind, again.job.payload, again.state) == ("report", {"to": "ada"}, "ready")
    assert again.job.headers == {}
    first = NewJob("first")
    takes = NewJob("second", {}, after=[first], headers={"pollwise-takes": "."})
    put = await site.queue.put([first, takes])
    page = await site.get(AT + put[1])
    assert "put the whole flow again" in page


@on_site
async def test_the_button_of_a_dead_job_says_what_its_retry_does(site: QueueSite) -> None:
    """Also for its flow; after the jobs of on_failure it has to be meant."""
    ids = await begun(site)
    at = f"{AT}{ids[1]}"
    page = text_of(await site.get(at))
    assert "Retry anyway…" in page
    assert "has started 1 job of on_failure: alert (delayed)." in page
    assert "then the 1 job of its flow that wait" in page
    await site.post(at, "retry")
    assert "not retried: its failure has started the jobs of on_failure" in await site.get(at)
    assert (await site.job(ids[1])).state == "dead"
    await site.post(at, "retry", anyway="1")
    assert "runs again, with fresh attempts" in await site.get(at)
    assert (await site.job(ids[1])).state == "ready"
    await site.queue.cancel(ids)
    first = NewJob("fetch")
    [job_id, _] = await site.queue.put([first, NewJob("report", after=[first])])
    await site.end(Settlement.dead, "broken")
    page = await site.get(f"{AT}{job_id}")
    assert ">Retry, and go on with the flow</button>" in page
    assert "when it is done, 1 job of its flow go" in page
