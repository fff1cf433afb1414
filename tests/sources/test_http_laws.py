"""Whatever happens between two pages: nothing is lost, and nothing repeated without a crash."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.core.budget import Allowance
from pollwise.fleet.probes.http.fetch import HttpAnswer
from pollwise.sources import HttpJson, MemoryCursors

PAGE = 3
#: New items, as many as the number; or a poll, a crash before a commit, or one after it.
steps = st.lists(
    st.one_of(st.integers(1, 2 * PAGE), st.sampled_from(["poll"] * 4 + ["crash", "restart"])),
    max_size=40,
)


class Api(HttpJson):
    """An API in memory, the newest items first, with pages by the `Link` header or by a token."""

    items: list[dict[str, Any]]

    async def _request(
        self, validators: Mapping[str, str], url: str | None = None
    ) -> tuple[HttpAnswer, float, Allowance | None]:
        assert url is not None
        query = {key: each[0] for key, each in parse_qs(urlsplit(url).query).items()}
        found = [each for each in self.items[::-1] if each["v"] >= int(query.get("since", 0))]
        start = int(query.get("from", 0))
        etag = f"{len(self.items)} {url}"
        if validators.get("etag") == etag:
            return HttpAnswer(304, {}, b"", {}), 0.0, None
        headers = {"etag": etag}
        following = start + PAGE if start + PAGE < len(found) else None
        if following is not None:
            since = f"&since={query['since']}" if "since" in query else ""
            headers["link"] = f'<?from={following}{since}>; rel="next"'
        body = {"items": found[start : start + PAGE], "next": following}
        return HttpAnswer(200, headers, json.dumps(body).encode(), {}), 0.0, None


@pytest.mark.parametrize(
    "given_options",
    [
        {"link": True},
        {"next": "next", "next_param": "from"},
        {"link": True, "field": "v"},
        {"link": True, "field": "v", "since": "since"},
    ],
    ids=["link", "token", "field", "since"],
)
@given(happened=steps)
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_and_nothing_repeated_without_a_crash(
    given_options: dict[str, Any], happened: list[int | str]
) -> None:
    async def main() -> None:
        cursors, items = MemoryCursors(), list[dict[str, Any]]()
        delivered: Counter[int] = Counter()
        crashes = most = 0

        def opened() -> Api:
            source = Api("http://h/", items="items", cursor=cursors, **given_options)
            source.items = items
            return source

        async def poll() -> bool:
            nonlocal most
            batch = await source()
            delivered.update(each["id"] for each in batch.items)
            most = max(most, len(batch.items))
            return batch.capacity is not None or len(batch.items) > 0

        source = opened()
        for step in happened:
            if isinstance(step, int):
                # Two items in a row have the same value.
                items += [{"id": n, "v": n // 2} for n in range(len(items), len(items) + step)]
            elif step == "poll":
                await poll()
            else:
                if step == "restart":
                    await source.commit()
                crashes += step == "crash"
                await source.close()
                source = opened()
        quiet = 0
        while quiet < 3:
            quiet = 0 if await poll() else quiet + 1
        await source.close()
        assert set(delivered) == set(range(len(items)))
        repeats = delivered.total() - len(items)
        assert repeats <= crashes * most

    asyncio.run(main())
