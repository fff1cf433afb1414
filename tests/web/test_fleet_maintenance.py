"""The page of maintenance windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from tests.web.test_fleet import NOW, run, target  # noqa: F401 - run is a fixture
from tests.web.viewers import Somebody
from tests.web.visiting import HOSTILE, Visitor

PAGE = "/fleets/pages/maintenance"


async def add(visitor: Visitor, **fields: str) -> str:
    """Send the form; returns the page that follows."""
    answer = await visitor.post(PAGE, "add", **fields)
    assert answer.status_code == 303, answer.text
    return await visitor.main(PAGE)


def test_windows_are_added_ended_and_removed(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("shop"), target(f"mail {HOSTILE}", group="post")])
        assert "No maintenance is planned" in await visitor.main(PAGE)
        page = await add(visitor, target="shop", note=f"upgrade {HOSTILE}", **{"for": "2h"})
        assert "shop under way" in page
        assert "in 2 h" in page
        page = await add(visitor, group="post", every="Sat,Sun 02:00-04:00 Europe/Zurich")
        assert "group post planned" in page
        often, once = sorted(await store.maintenance(), key=lambda each: each.targets)
        assert (once.targets, once.made_by) == (("shop",), "web: local")
        assert once.ends_at == NOW + 7200
        await visitor.post(PAGE, "end", [once.id])
        assert "shop over" in await visitor.main(PAGE)
        await visitor.post(PAGE, "remove", [often.id])
        assert [each.id for each in await store.maintenance()] == [once.id]
        entries = [each.action for each in await store.list_audit(10)]
        assert entries == [
            "maintenance.remove", "maintenance.end", "maintenance.add", "maintenance.add",
        ]  # fmt: skip

    run(main)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"for": "2h"}, "Say for whom it is"),
        ({"target": "shop"}, "for"),
        ({"target": "nobody", "for": "2h"}, "nobody"),
        ({"group": "nobody", "for": "2h"}, "nobody"),
        ({"target": "shop", "for": "soon"}, "soon"),
        ({"target": "shop", "every": "Caturday 02:00-04:00"}, "Caturday"),
    ],
)
def test_what_is_wrong_is_said(
    run: Callable[..., None],  # noqa: F811
    fields: dict[str, Any],
    said: str,
) -> None:
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("shop")])
        answer = await visitor.post(PAGE, "add", **fields)
        assert answer.status_code == 303
        assert not await store.maintenance()
        html = await visitor.get(answer.headers["location"].removesuffix("#new"))
        assert 'class="notice bad"' in html
        assert said in html
        for name, value in fields.items():
            assert f'name="{name}" value="{value}"' in html

    run(main)


def test_only_operators_change_windows(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("shop")])
        assert "New window" not in await visitor.main(PAGE)
        answer = await visitor.post(PAGE, "add", target="shop", **{"for": "2h"})
        assert answer.status_code == 403
        assert not await store.maintenance()

    run(main, Somebody("read"))
