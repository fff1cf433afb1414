"""SMTP: does a mail server greet, and what does it offer?

    [[target]]
    name = "mail server"
    type = "smtp"
    address = "mail.example:587"
    starttls = true

It says EHLO and QUIT; no mail is sent, and nobody logs in. The greeting often has a time or an id,
so it is the reading only with `regex`.
"""

from __future__ import annotations

from typing import ClassVar

from pollwise.fleet.probes.net import mail
from pollwise.fleet.probes.net.conversation import Conversation
from pollwise.fleet.probes.net.mail import LINES_MAX, MailProbe, refused
from pollwise.fleet.probes.options import ProbeOptions

FACTS = mail.FACTS


class SmtpProbe(MailProbe):
    """Greets. Options: address (port 25, with tls 465), tls, starttls, hello, regex (use what it
    matches in the greeting), and the options of TLS."""

    __slots__ = ("_hello",)

    ports: ClassVar[tuple[int, int]] = (25, 465)
    goodbye = b"QUIT\r\n"

    def _read_options(self, options: ProbeOptions) -> None:
        self._hello = options.text("hello", "localhost")
        if not self._hello or not all(c.isalnum() or c in ".-:[]" for c in self._hello):
            options.wrong("hello", f"= {self._hello!r} must be a host name, or an address in []")
        if not self._hello.isascii() or len(self._hello) > 255:
            options.wrong("hello", "must be ASCII, of at most 255 characters")

    async def _greeting(self, talk: Conversation) -> str:
        code, lines = await answer(talk)
        if code != 220:
            raise refused("no service", f"{code} {lines[0]}")
        return lines[0]

    async def _offered(self, talk: Conversation) -> set[str]:
        return await offered(talk, self._hello)

    async def _ask_for_tls(self, talk: Conversation, offered: set[str]) -> None:
        await ask_for_tls(talk, offered)


async def offered(talk: Conversation, hello: str) -> set[str]:
    """Say EHLO; what the server offers."""
    talk.send(f"EHLO {hello}\r\n".encode())
    code, lines = await answer(talk)
    if code != 250:
        raise refused("EHLO was refused", f"{code} {lines[0]}")
    return {" ".join(line.split()).upper() for line in lines[1:] if line.strip()}


async def ask_for_tls(talk: Conversation, offered: set[str]) -> None:
    """Say STARTTLS."""
    if "STARTTLS" not in offered:
        raise ValueError("does not offer STARTTLS")
    talk.send(b"STARTTLS\r\n")
    code, lines = await answer(talk)
    if code != 220:
        raise refused("STARTTLS was refused", f"{code} {lines[0]}")


async def answer(talk: Conversation) -> tuple[int, list[str]]:
    """An answer: its code, and its lines without it."""
    lines: list[str] = []
    while len(lines) < LINES_MAX:
        line = await talk.line()
        code, rest = line[:3], line[3:]
        if not (code.isascii() and code.isdecimal()) or rest[:1] not in ("", " ", "-"):
            raise refused("sent a line that is not SMTP", line)
        lines.append(rest[1:].strip())
        if rest[:1] != "-":
            return int(code), lines
    raise ValueError(f"sent more than {LINES_MAX} lines in one answer")


make = SmtpProbe
