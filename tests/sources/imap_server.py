"""A small IMAP server: one folder, read-only, with IDLE."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field


@dataclass
class Mailbox:
    """The contents of the server, and the requests that it got.

    broken: it drops connections. quoted: short bodies come as quoted strings.
    """

    messages: dict[int, bytes] = field(default_factory=dict)
    next_uid: int = 1
    validity: int = 7
    capabilities: str = "IMAP4rev1 IDLE"
    broken: bool = False
    quoted: bool = False
    asked: list[str] = field(default_factory=list)
    logins: int = 0
    idling: set[asyncio.StreamWriter] = field(default_factory=set)
    open: set[asyncio.StreamWriter] = field(default_factory=set)

    def put(self, raw: bytes) -> int:
        uid = self.next_uid
        self.next_uid += 1
        self.messages[uid] = raw
        for writer in self.idling:
            writer.write(f"* {len(self.messages)} EXISTS\r\n".encode())
        return uid

    def drop_all(self) -> None:
        for writer in list(self.open):
            writer.transport.abort()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.broken:
            writer.transport.abort()
            return
        self.open.add(writer)
        try:
            writer.write(b"* OK ready\r\n")
            while line := (await reader.readline()).decode().rstrip("\r\n"):
                await self._answer(line, reader, writer)
        finally:
            self.open.discard(writer)
            self.idling.discard(writer)

    async def _answer(
        self, line: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        tag, _, said = line.partition(" ")
        self.asked.append(said)
        word = said.upper()
        if word.startswith("LOGIN"):
            if said != 'LOGIN "me" "se\\"cret"':
                writer.write(f"{tag} NO [AUTHENTICATIONFAILED] wrong\r\n".encode())
                return
            self.logins += 1
        elif word == "CAPABILITY":
            writer.write(f"* CAPABILITY {self.capabilities}\r\n".encode())
        elif word.startswith("EXAMINE"):
            if said != 'EXAMINE "INBOX"':
                writer.write(f"{tag} NO [NONEXISTENT] no such folder\r\n".encode())
                return
            writer.write(
                f"* {len(self.messages)} EXISTS\r\n* OK [UIDVALIDITY {self.validity}] numbered\r\n"
                f"* OK [UIDNEXT {self.next_uid}] next\r\n".encode()
            )
        elif word == "IDLE":
            writer.write(b"+ idling\r\n")
            self.idling.add(writer)
            await reader.readline()
            self.idling.discard(writer)
        elif fetch := re.fullmatch(r"UID FETCH ([\d:,]+) \((.*)\)", said):
            self._fetch(writer, fetch[1], fetch[2])
        writer.write(f"{tag} OK done\r\n".encode())

    def _fetch(self, writer: asyncio.StreamWriter, chosen: str, what: str) -> None:
        first, _, last = chosen.partition(":")
        wanted = range(int(first), int(last) + 1) if last else [int(n) for n in chosen.split(",")]
        cut = re.search(r"BODY\.PEEK\[\]<0\.(\d+)>", what)
        for number, (uid, raw) in enumerate(self.messages.items(), 1):
            if uid not in wanted:
                continue
            writer.write(f"* {number} FETCH (FLAGS (\\Seen) UID {uid}".encode())
            if cut:
                part = raw[: int(cut[1])]
                writer.write(f" RFC822.SIZE {len(raw)} BODY[]<0> ".encode())
                if self.quoted:
                    writer.write(b'"' + part.replace(b'"', b'\\"') + b'"')
                else:
                    writer.write(f"{{{len(part)}}}\r\n".encode() + part)
            writer.write(b")\r\n")
