"""Posts notices to a URL as JSON, signed and sent as the outbox's webhooks are.

The body is the notice's payload, with a `text` that Slack, Mattermost and others show. The receiver
checks the signature with `pollwise.outbox.publishers.signatures.verify` and drops duplicates by
`Idempotency-Key`.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

from pollwise.alerts.channels.base import Channel, ChannelOptions
from pollwise.alerts.texts import Template, filled, line_of, templates_in
from pollwise.alerts.values import Notice
from pollwise.durations import shown
from pollwise.errors import ChannelError, ConfigError, MissingExtra, PublishError
from pollwise.outbox.envelope import JSON, Message
from pollwise.outbox.publishers.signatures import Secret
from pollwise.outbox.records import Record

if TYPE_CHECKING:
    from pollwise.outbox.publishers.webhook import WebhookPublisher


class WebhookChannel(Channel):
    """Posts each notice as JSON.

        WebhookChannel("ops", "https://hooks.example/fleet", secret=os.environ["HOOK_SECRET"])

    url, secret, headers: as for `WebhookPublisher`. The URL is never shown, only its host.
    text: a template for the `text` of the body.
    body: a table that is sent in place of the payload; its texts are templates.
    verify: off accepts any certificate. ca: a file of certificates to trust.

    Only 2xx is success. Redirects are not followed: the content was meant for this host.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        secret: Secret | Sequence[Secret] | None = None,
        headers: Mapping[str, str] | None = None,
        text: str | None = None,
        body: Mapping[str, Any] | None = None,
        verify: bool = True,
        ca: str | None = None,
        **common: Unpack[ChannelOptions],
    ) -> None:
        super().__init__(name, common)
        if text is not None and body is not None:
            raise ConfigError("give text or body, not both: body replaces the whole content")
        if body is not None and not isinstance(body, Mapping):
            raise ConfigError(f"body = {shown(body)} must be a table")
        self._text = None if text is None else Template(text, "text")
        self._body = None if body is None else templates_in(body, "body")
        self._publisher = self._made(url, secret, headers, _context(verify, ca))

    def _made(
        self,
        url: str,
        secret: Secret | Sequence[Secret] | None,
        headers: Mapping[str, str] | None,
        context: ssl.SSLContext | None,
    ) -> WebhookPublisher:
        try:
            from pollwise.outbox.publishers.webhook import WebhookPublisher
        except MissingExtra as error:
            raise MissingExtra("a channel of type webhook", "alerts") from error
        return WebhookPublisher(
            url,
            secret,
            headers=headers,
            ssl=context,
            # Its own time limit says more than the channel's.
            timeout=self.timeout,
            envelope=_message,
            clock=self.clock,
        )

    async def send(self, notice: Notice) -> None:
        try:
            await self._publisher(self._record(notice))
        except PublishError as error:
            raise ChannelError(
                f"{self}: {error}", permanent=error.permanent, retry_after=error.retry_after
            ) from None

    async def _send(self, notice: Notice) -> None:
        raise AssertionError("the publisher keeps the time limit")

    def _record(self, notice: Notice) -> Record:
        payload = notice.payload
        if self._body is not None:
            content = filled(self._body, payload)
        else:
            text = payload.get("text") or line_of(payload)
            text = text if self._text is None else self._text(payload)
            content = {"id": notice.id, **payload, "text": text}
        at = payload.get("at")
        created = float(at) if isinstance(at, (int, float)) else 0.0
        kind = f"alert.{notice.event}"
        return Record(notice.id, "alerts", kind, content, notice.alert, {}, created)

    async def close(self) -> None:
        await self._publisher.aclose()

    def __repr__(self) -> str:
        return f"WebhookChannel({self.name!r}, {self._publisher.where!r})"


def _message(record: Record) -> Message:
    body = json.dumps(record.payload, ensure_ascii=False, separators=(",", ":"))
    return Message(body.encode("utf-8", "replace"), JSON)


def _context(verify: object, ca: object) -> ssl.SSLContext | None:
    """A TLS context; None for the default one."""
    if not isinstance(verify, bool):
        raise ConfigError(f"verify = {shown(verify)} must be true or false")
    if ca is not None:
        with suppress(OSError, ssl.SSLError, TypeError):
            return ssl.create_default_context(cafile=ca)  # type: ignore[arg-type]
        raise ConfigError(f"ca = {shown(ca)} is not a file of PEM certificates")
    if verify:
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
