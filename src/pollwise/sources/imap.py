"""A folder of an IMAP mailbox."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import Message
from typing import Any

from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError, ProbeError, ProbeRefused, ProbeTimeout
from pollwise.fleet.probes.net.conversation import (
    Conversation,
    TlsOptions,
    address_of,
    connected,
    shown_address,
)
from pollwise.fleet.probes.net.imap import command, greeting
from pollwise.fleet.probes.options import BadOptions, ProbeOptions, failed
from pollwise.fleet.targets import Target
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.redact import HIDDEN
from pollwise.sources.base import Found, Source, State, whole
from pollwise.sources.cursors import CursorStore

#: How many messages a poll delivers at most, by default.
LIMIT = 20
#: How much of each message is read, in bytes, by default.
BODY_MAX = 1024 * 1024
#: How long a poll may take, in seconds.
TIMEOUT = 60.0
#: How long an IDLE lasts before the next begins, in seconds: servers end it after half an hour.
IDLE_SECONDS = 25 * 60.0
#: How long to wait after an IDLE that failed, in seconds.
IDLE_AGAIN = 60.0
#: How many UIDs are asked for at a time, and how often in a poll. In a gap it is more each time.
_WINDOW = 500
_WINDOWS_MAX = 40
#: Maximum size of an answer besides the messages, in bytes, and of its lines.
_TALK_MAX = 256 * 1024
_LINES_MAX = 5000
_LITERALS_MAX = 10

_LITERAL = re.compile(r"\{(\d{1,12})\}$")
#: Stands for the n-th literal in a line.
_PLACE = "\x00{}\x00"
_FETCHED = re.compile(r"\d+ FETCH \((.*)\)$", re.IGNORECASE | re.DOTALL)
_UID = re.compile(r"\bUID (\d{1,10})\b", re.IGNORECASE)
_SIZE = re.compile(r"\bRFC822\.SIZE (\d{1,15})\b", re.IGNORECASE)
_BODY = re.compile(
    r"BODY\[\](?:<\d+>)? (?:\x00(\d+)\x00|\"((?:[^\"\\]|\\.)*)\"|NIL)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class MailMessage:
    """A message: its UID, its whole size in bytes, and its content, which may be cut off."""

    uid: int
    size: int
    raw: bytes

    @property
    def is_cut(self) -> bool:
        """True if it was longer than the source reads."""
        return len(self.raw) < self.size

    @property
    def message(self) -> Message:
        """The message as the standard library reads it."""
        return message_from_bytes(self.raw, policy=policy.default)

    def as_json(self) -> dict[str, Any]:
        """Its usual headers as texts, and its content in Base64."""
        headers = self.message
        shown = {each: headers[each] for each in ("Date", "From", "To", "Subject", "Message-ID")}
        return {
            "uid": self.uid,
            "size": self.size,
            "is_cut": self.is_cut,
            **{key.lower(): None if text is None else str(text) for key, text in shown.items()},
            "raw": base64.b64encode(self.raw).decode(),
        }


class ImapFolder(Source[MailMessage]):
    """The messages of a folder, each once, in the order in which they arrived.

        inbox = ImapFolder("mail.example", "me@example", password, cursor="sqlite:///cursors.db")

    Nothing is changed: messages are not even marked as seen. A second connection waits for new
    ones (IDLE), if the server can do that, and ends a pause early.

    address: host, or host:port; the port is 993, or 143 without `tls`.
    starttls: begin without TLS and change to it. Without either, a password is sent in clear text.
    body_max: how much of a message is read, in bytes.

    If the server numbers the folder again (UIDVALIDITY), everything is delivered again.
    Further options: server_name, verify, ca.
    """

    def __init__(
        self,
        address: str,
        user: str,
        password: str,
        folder: str = "INBOX",
        *,
        tls: bool = True,
        starttls: bool = False,
        idle: bool = True,
        body_max: int = BODY_MAX,
        cursor: str | CursorStore | None = None,
        name: str | None = None,
        limit: int = LIMIT,
        timeout: Duration = TIMEOUT,
        clock: Clock | None = None,
        **security: Any,
    ) -> None:
        options = ProbeOptions(Target("source", "imap", options={"address": address, **security}))
        at_once = tls and not starttls
        self._host, self._port = address_of(options, 993 if at_once else 143)
        self._tls = TlsOptions.if_wanted(options, self._host, tls or starttls)
        try:
            options.finish()
        except BadOptions as wrong:
            said = "; ".join(f"{key} {what}".strip() for key, what in wrong.problems)
            raise ConfigError(f"ImapFolder: {said}") from None
        self._shown = shown_address(self._host, self._port)
        super().__init__(
            name or f"imap:{user}@{self._shown}/{folder}", cursor, limit=limit, clock=clock
        )
        whole("body_max", body_max, 1, 1024**3)
        quoted = _quoted("password", password)
        self._login = f"LOGIN {_quoted('user', user)} {quoted}"
        #: How a server that repeats what it got would show the password.
        self._secrets = (quoted, quoted[1:-1], password)
        self._folder = _quoted("folder", folder)
        self._starttls = starttls
        self.body_max = body_max
        self.timeout: float = seconds(timeout, "timeout", positive=True)
        self.hints: Hints = Hints()
        self._idles = idle
        self._idling: asyncio.Task[None] | None = None
        self._open: AsyncExitStack | None = None
        self._talk: Conversation | None = None

    async def _find(self, state: State, hold: float) -> Found[MailMessage]:
        done = False
        try:
            async with asyncio.timeout(self.timeout), self._named():
                found = await self._read(state)
                done = True
        except TimeoutError:
            raise ProbeTimeout(
                f"{self._shown} did not answer within {self.timeout:g} s; check the server, or "
                "raise timeout"
            ) from None
        finally:
            if not done:
                await self._hang_up()
        return found

    async def _read(self, state: State) -> Found[MailMessage]:
        talk = self._talk
        if talk is None:
            opened = self._open = AsyncExitStack()
            talk = self._talk = await opened.enter_async_context(self._connected(self._all_max))
            offered = await self._enter(talk)
            if self._idles and "IDLE" in offered and self._idling is None:
                self._idling = asyncio.create_task(self._wait_for_mail())
        talk.start_over()
        validity, following = await self._examine(talk)
        after = state.get("after", 0) if state.get("validity") == validity else 0
        uids, after = await self._uids(talk, after, following)
        if not uids:
            # No message has the UIDs that were skipped; they are not asked for again.
            return Found((), {"validity": validity, "after": after})
        more = len(uids) > self.limit
        wanted = uids[: self.limit]
        messages = await self._messages(talk, wanted)
        return Found(messages, {"validity": validity, "after": wanted[-1]}, more)

    @property
    def _all_max(self) -> int:
        return self.limit * (self.body_max + _TALK_MAX // 64) + _TALK_MAX

    @asynccontextmanager
    async def _named(self) -> AsyncIterator[None]:
        """Raise errors of the conversation as errors of a poll, with the server's name."""
        try:
            yield
        except (ProbeError, TimeoutError):
            raise
        except (OSError, EOFError, ValueError) as error:
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise failed(f"{self._shown}: {reason}") from None

    @asynccontextmanager
    async def _connected(self, size: int) -> AsyncIterator[Conversation]:
        at_once = None if self._starttls else self._tls
        async with connected(self._host, self._port, size, at_once) as talk:
            yield talk

    async def _enter(self, talk: Conversation) -> set[str]:
        """Log in; what the server offers then."""
        welcome = await greeting(talk)
        if self._starttls and self._tls is not None:
            await command(talk, "STARTTLS")
            await talk.secure(self._tls)
        if not welcome.upper().startswith("PREAUTH"):
            await self._ask(talk, self._login, "LOGIN")
        lines = await self._ask(talk, "CAPABILITY")
        return {word for line, _ in lines for word in line.upper().split()[1:]}

    async def _examine(self, talk: Conversation) -> tuple[int, int]:
        """The numbering of the folder, and the UID that the next message will have."""
        lines = await self._ask(talk, f"EXAMINE {self._folder}", "EXAMINE")
        said = "\n".join(line for line, _ in lines)
        found = [
            re.search(rf"\[{code} (\d{{1,10}})\]", said, re.IGNORECASE)
            for code in ("UIDVALIDITY", "UIDNEXT")
        ]
        if found[0] is None or found[1] is None:
            raise ProbeRefused(
                f"{self._shown} does not give UIDs to the messages of {self._folder}"
            )
        return int(found[0][1]), int(found[1][1])

    async def _uids(self, talk: Conversation, after: int, following: int) -> tuple[list[int], int]:
        """The first UIDs above `after`, one more than wanted, and up to where none were found."""
        uids: list[int] = []
        size = _WINDOW
        for _ in range(_WINDOWS_MAX):
            if after + 1 >= following or len(uids) > self.limit:
                break
            last = min(after + size, following - 1)
            lines = await self._ask(talk, f"UID FETCH {after + 1}:{last} (UID)", "UID FETCH")
            found = {int(each[1]) for line, _ in lines if (each := _UID.search(line))}
            uids += sorted(uid for uid in found if after < uid <= last)
            size = _WINDOW if found else size * 4
            after = last
        return uids, after

    async def _messages(self, talk: Conversation, uids: Sequence[int]) -> list[MailMessage]:
        """These messages, without those that were removed meanwhile."""
        numbers = ",".join(map(str, uids))
        what = f"UID FETCH {numbers} (UID RFC822.SIZE BODY.PEEK[]<0.{self.body_max}>)"
        found: dict[int, MailMessage] = {}
        for line, literals in await self._ask(talk, what, "UID FETCH"):
            fetched = _FETCHED.match(line)
            uid = fetched and _UID.search(fetched[1])
            body = fetched and _BODY.search(fetched[1])
            if fetched is None or not uid or not body or int(uid[1]) not in uids:
                continue  # a change of another message, such as its flags
            raw = b""
            if body[1] is not None:
                raw = literals[int(body[1])]
            elif body[2] is not None:
                raw = re.sub(r"\\(.)", r"\1", body[2]).encode()
            size = _SIZE.search(fetched[1])
            length = int(size[1]) if size else len(raw)
            found[int(uid[1])] = MailMessage(int(uid[1]), length, raw)
        return [found[uid] for uid in uids if uid in found]

    async def _ask(
        self, talk: Conversation, text: str, shown_as: str | None = None
    ) -> list[tuple[str, list[bytes]]]:
        """Send a command; the untagged lines of its answer, and the literals in them."""
        talk.send(f"a {text}\r\n".encode())
        lines: list[tuple[str, list[bytes]]] = []
        while len(lines) < _LINES_MAX:
            line, literals = await self._line(talk)
            tag, _, rest = line.partition(" ")
            if tag == "*":
                lines.append((rest, literals))
                if rest.upper().startswith("BYE"):
                    raise failed(f"{self._shown} said goodbye: {self._clean(rest)[:120]}")
            elif tag == "a":
                state, _, why = rest.partition(" ")
                if state.upper() == "OK":
                    return [*lines, (rest, [])]
                for_good = re.search(
                    r"\[(AUTHENTICATIONFAILED|AUTHORIZATIONFAILED|NONEXISTENT)\]", why
                )
                raise failed(
                    f"{self._shown} refused {shown_as or text}: {shown(self._clean(why)[:120])}",
                    permanent=for_good is not None,
                )
            else:
                raise ValueError(f"sent a line that is not IMAP: {shown(self._clean(line)[:80])}")
        raise ValueError(f"sent more than {_LINES_MAX:,} lines in one answer")

    def _clean(self, text: str) -> str:
        """What the server said, without the password."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    async def _line(self, talk: Conversation) -> tuple[str, list[bytes]]:
        """A line, with its literals replaced by their places, and the literals."""
        parts: list[str] = []
        literals: list[bytes] = []
        while True:
            line = (await talk.line()).replace("\x00", "")
            literal = _LITERAL.search(line)
            if literal is None:
                return "".join([*parts, line]), literals
            size = int(literal[1])
            if len(literals) == _LITERALS_MAX:
                raise ValueError(f"sent more than {_LITERALS_MAX} literals in a line")
            if size > self.body_max:
                raise ValueError(f"sent {size:,} bytes where {self.body_max:,} are allowed")
            parts.append(line[: literal.start()] + _PLACE.format(len(literals)))
            literals.append(await talk.exactly(size))

    # New mail

    async def _wait_for_mail(self) -> None:
        """Send a hint whenever the server says that there is more; polling goes on without it."""
        while True:
            with suppress(ProbeError, OSError, EOFError, ValueError):
                async with self._connected(_TALK_MAX) as talk:
                    async with asyncio.timeout(self.timeout):
                        await self._enter(talk)
                        await self._examine(talk)
                    self.hints.send()  # something may have arrived while nobody waited
                    while True:
                        await self._idle(talk)
            await asyncio.sleep(IDLE_AGAIN)

    async def _idle(self, talk: Conversation) -> None:
        """One IDLE, for as long as servers allow it."""
        talk.start_over()
        talk.send(b"i IDLE\r\n")
        with suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS):
                while not (line := await talk.line()).startswith("i "):
                    talk.start_over()
                    if re.fullmatch(r"\* \d+ (EXISTS|RECENT)\s*", line, re.IGNORECASE):
                        self.hints.send()
                raise ValueError("the server ended IDLE")
        talk.send(b"DONE\r\n")
        async with asyncio.timeout(self.timeout):
            while not (await talk.line()).startswith("i "):
                pass

    async def _hang_up(self) -> None:
        opened, self._open, self._talk = self._open, None, None
        if opened is not None:
            with suppress(ProbeError):
                await opened.aclose()

    async def _release(self) -> None:
        idling, self._idling = self._idling, None
        if idling is not None:
            idling.cancel()
            await asyncio.wait([idling])
        await self._hang_up()


def _quoted(name: str, text: object) -> str:
    """A text as a quoted string of IMAP. Errors never show it."""
    if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable():
        advice = "; write other letters in modified UTF-7" if name == "folder" else ""
        raise ConfigError(f"{name} must be a text of printable ASCII{advice}")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
