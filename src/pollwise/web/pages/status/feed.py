"""The feed of incidents, in RSS 2.0."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import sha256
from xml.sax.saxutils import escape

from pollwise.web.pages.status.contents import PublicIncident, PublicStatus
from pollwise.web.texts import age

#: Characters that XML does not allow at all.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def feed(status: PublicStatus, page: str) -> str:
    """The feed, the newest item first. page: the path of the status page."""
    found = sorted(_items(status.incidents, page), key=lambda item: -item[0])
    items = "".join(item for _, item in found)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<rss version="2.0"><channel>'
        f"<title>{_text(status.title)}</title><link>{_text(page)}</link>"
        f"<description>{_text(status.headline)}</description>{items}</channel></rss>\n"
    )


def _items(incidents: Iterable[PublicIncident], page: str) -> Iterable[tuple[float, str]]:
    """The items, each with its time."""
    for each in incidents:
        if each.ended_at is not None:
            lasted = age(each.ended_at - each.started_at)
            text = f"It was down for {lasted}."
            yield each.ended_at, _item(each, page, "is up again", text, each.ended_at)
        yield each.started_at, _item(each, page, "is down", each.reason, each.started_at)


def _item(each: PublicIncident, page: str, what: str, text: str, at: float) -> str:
    # The same incident keeps its id, so that readers show it once.
    seen = sha256(f"{each.target}\n{each.started_at:.0f}\n{what}".encode(errors="replace"))
    said = " ".join(part for part in (text, each.note) if part)
    return (
        f"<item><title>{_text(each.target)} {what}</title><link>{_text(page)}</link>"
        f'<guid isPermaLink="false">{seen.hexdigest()[:32]}</guid>'
        f"<pubDate>{format_datetime(datetime.fromtimestamp(at, UTC), usegmt=True)}</pubDate>"
        f"<description>{_text(said)}</description></item>"
    )


def _text(text: str) -> str:
    return escape(_FORBIDDEN.sub("�", text))
