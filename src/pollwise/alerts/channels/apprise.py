"""Sends notices with Apprise: e-mail, chats, pagers, telephones; a hundred services.

The URL is a secret as a whole: Apprise keeps tokens in its host and its path. Nothing of it is
shown but the name of the service.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Unpack
from urllib.parse import unquote

from pollwise.alerts.channels.base import Channel, ChannelOptions
from pollwise.alerts.texts import Template, body_of, title_of
from pollwise.alerts.values import Notice
from pollwise.errors import ChannelError, ConfigError, MissingExtra
from pollwise.runtime.executor.threads import DaemonThreads
from pollwise.runtime.redact import HIDDEN, without_hidden

#: The maximum number of notices that one channel sends at a time. One that hangs keeps its place.
THREADS = 4
#: The longest reason in an error.
_REASON_MAX = 500
#: Shorter parts of a URL are not hidden: they are hardly secrets, and could be part of any word.
_SECRET_MIN = 5

_LOGGER = logging.getLogger("apprise")
#: Parts of the URLs of all channels of this process, hidden in Apprise's log records.
_secrets: set[str] = set()
#: Where the warnings of a call go, in place of the log: they become part of our error.
_warnings: ContextVar[list[str] | None] = ContextVar("_warnings", default=None)


class AppriseChannel(Channel):
    """Sends each notice to one service.

        AppriseChannel("mail", "mailto://user:password@example.org?to=ops@example.org")

    url: the service, as Apprise writes it. It is never shown.
    title, text: templates for the two parts of the message.

    Redirects are not followed. Whatever fails is tried again: Apprise does not say whether a retry
    can help.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        title: str | None = None,
        text: str | None = None,
        **common: Unpack[ChannelOptions],
    ) -> None:
        super().__init__(name, common)
        self._title = title_of if title is None else Template(title, "title")
        self._text = body_of if text is None else Template(text, "text")
        try:
            import apprise
        except ImportError as error:
            raise MissingExtra("a channel of type apprise", "alerts") from error
        self._hide(url)
        asset = apprise.AppriseAsset(
            app_id="Pollwise",
            app_desc="Pollwise alerts",
            async_mode=False,
            storage_mode="memory",  # nothing is written to the disk
            service_timeout=0,  # the channel keeps the time limit
            allow_templates=False,
            pgp_autogen=False,
            pem_autogen=False,
            http_redirects=False,
        )
        self._apprise: Any = apprise.Apprise(asset=asset)
        if not isinstance(url, str):
            raise ConfigError("url must be text, such as mailto://user:password@example.org")
        with _gathered() as said:
            service = apprise.Apprise.instantiate(url, asset=asset)
        if service is None or not self._apprise.add(service):
            raise ConfigError(
                f"url: Apprise cannot use it: {_joined(said) or 'it knows no such service'}; give "
                "the URL of a service, such as mailto://user:password@example.org"
            )
        self.service: str = str(service.service_name)
        self._threads: DaemonThreads | None = None

    async def _send(self, notice: Notice) -> None:
        if self._threads is None:
            self._threads = DaemonThreads(THREADS, f"channel-{self.name}")
        loop = asyncio.get_running_loop()
        reason = await loop.run_in_executor(self._threads, self._notify, notice)
        if reason is not None:
            raise ChannelError(f"{self} could not send: {reason}")

    def _notify(self, notice: Notice) -> str | None:
        """Send it; return why it failed, or None. Runs in a thread."""
        import apprise

        kinds = apprise.NotifyType
        kind = {"critical": kinds.FAILURE, "warning": kinds.WARNING}.get(
            str(notice.payload.get("severity")), kinds.INFO
        )
        try:
            with _gathered() as said:
                sent = self._apprise.notify(
                    body=self._text(notice.payload),
                    title=self._title(notice.payload),
                    notify_type=kinds.SUCCESS if notice.event == "closed" else kind,
                    body_format=apprise.NotifyFormat.TEXT,
                )
        except Exception as error:  # a plugin may raise anything
            return _joined([f"{type(error).__name__}: {error}"])
        return None if sent else _joined(said) or "the service gave no reason"

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def __str__(self) -> str:
        return f"channel {self.name!r} ({self.service})"

    def _hide(self, url: object) -> None:
        """Hide the parts of its URL in everything that Apprise logs from now on."""
        if isinstance(url, str):
            rest = url.partition("://")[2]
            parts = {url, rest, *re.split(r"[/:@?&=#,]+", rest)}
            parts |= {unquote(each) for each in parts}
            _secrets.update(each for each in parts if len(each) >= _SECRET_MIN)
        if _screen not in _LOGGER.filters:
            _LOGGER.addFilter(_screen)
        if _LOGGER.level == logging.NOTSET:
            _LOGGER.setLevel(logging.WARNING)  # below it logs whole messages


@contextmanager
def _gathered() -> Iterator[list[str]]:
    """Gather what Apprise logs in this thread, in place of logging it."""
    said: list[str] = []
    token = _warnings.set(said)
    try:
        yield said
    finally:
        _warnings.reset(token)


def _screen(record: logging.LogRecord) -> bool:
    """Hide secrets in a record of Apprise; gather it where somebody wants it."""
    record.msg, record.args = _hidden(record.getMessage()), ()
    said = _warnings.get()
    if said is None:
        return True
    if record.levelno >= logging.WARNING:
        said.append(str(record.msg))
    return False


def _hidden(text: str) -> str:
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return without_hidden(text)


def _joined(said: list[str]) -> str:
    text = "; ".join(dict.fromkeys(_hidden(each).strip().rstrip(".") for each in said))
    return text if len(text) <= _REASON_MAX else f"{text[:_REASON_MAX]} …"
