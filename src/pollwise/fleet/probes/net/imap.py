"""IMAP: does a mail server greet, and what does it offer?

    [[target]]
    name = "mailboxes"
    type = "imap"
    address = "mail.example"
    tls = true

It asks for the capabilities and logs out; nobody logs in.
"""

from __future__ import annotations

from typing import ClassVar

from pollwise.fleet.probes.net import mail
from pollwise.fleet.probes.net.conversation import Conversation
from pollwise.fleet.probes.net.mail import LINES_MAX, MailProbe, refused

FACTS = mail.FACTS


class ImapProbe(MailProbe):
    """Greets. Options: address (port 143, with tls 993), tls, starttls, regex (use what it matches
    in the greeting), and the options of TLS."""

    __slots__ = ()

    ports: ClassVar[tuple[int, int]] = (143, 993)
    goodbye = b"z LOGOUT\r\n"

    async def _greeting(self, talk: Conversation) -> str:
        return await greeting(talk)

    async def _offered(self, talk: Conversation) -> set[str]:
        found: set[str] = set()
        for line in await command(talk, "CAPABILITY"):
            words = line.upper().split()
            if words[:1] == ["CAPABILITY"]:
                found.update(words[1:])
        if not found:
            raise ValueError("did not say what it offers")
        return found

    async def _ask_for_tls(self, talk: Conversation, offered: set[str]) -> None:
        if "STARTTLS" not in offered:
            raise ValueError("does not offer STARTTLS")
        await command(talk, "STARTTLS")


async def greeting(talk: Conversation) -> str:
    """The greeting, without its star; an error if the server refuses service."""
    line = await talk.line()
    words = line.upper().split()
    if words[:1] != ["*"] or words[1:2] not in (["OK"], ["PREAUTH"], ["BYE"]):
        raise refused("sent a line that is not IMAP", line)
    if words[1] == "BYE":
        raise refused("no service", line)
    return line[2:].strip()


async def command(talk: Conversation, name: str) -> list[str]:
    """Send a command without arguments; the untagged lines of its answer."""
    talk.send(f"a {name}\r\n".encode())
    lines: list[str] = []
    while len(lines) < LINES_MAX:
        line = await talk.line()
        tag, _, rest = line.partition(" ")
        if tag == "*":
            lines.append(rest)
        elif tag == "a":
            if rest.upper().split()[:1] != ["OK"]:
                raise refused(f"{name} was refused", rest)
            return lines
        else:
            raise refused("sent a line that is not IMAP", line)
    raise ValueError(f"sent more than {LINES_MAX} lines in one answer")


make = ImapProbe
