"""The names and sizes of a queue's objects, which hold all that a LIST has to show.

A LIST returns each object's name, size and time of writing, but not its content. So a put has its
order in its name, and an entry of a chain has its meaning in its size: the content, which only a
few readers need, is padded with spaces to a length that encodes kind, time and count.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import math
import re
import secrets
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

from pollwise.errors import ConfigError
from pollwise.runtime.jobs import PRIORITY_MAX

#: The maximum number of jobs that one write can claim; see `EntryKind.CLAIM`.
SLICE = 16
#: The tag of a put whose jobs differ or whose body has gaps: its body has to be read first.
MIXED = "mixed"

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"  # texts sort as their values do
_FOLDER = re.compile(
    r"(?:0(?P<now>[0-9a-f]{3})|1(?P<due>[0-9a-z]{11})(?P<later>[0-9a-f]{3}))"
    r"-(?P<stamp>[0-9a-z]{11})-(?P<salt>[0-9a-z]{8})-(?P<tag>[0-9a-z]{5})-(?P<count>[1-9]\d{0,4})"
)


def digits(number: int, width: int) -> str:
    text = ""
    for _ in range(width):
        number, low = divmod(number, 32)
        text = _DIGITS[low] + text
    return text


def _number(text: str) -> int:
    number = 0
    for digit in text:
        number = number * 32 + _DIGITS.index(digit)
    return number


def salt() -> str:
    return digits(secrets.randbits(40), 8)


@lru_cache(1024)
def tag_of(kind: str) -> str:
    """Five letters for a kind. Two kinds may share them, so a claim also checks the job."""
    return digits(int.from_bytes(hashlib.sha256(kind.encode()).digest()[:4]) >> 7, 5)


@dataclass(frozen=True, slots=True)
class PutName:
    """The name of one put: one folder with one object that holds all its jobs.

    Names sort in claim order: first the jobs that may run at once, by priority, then the delayed
    ones by due time. stamp: the time of the put in microseconds, increasing within a process.
    """

    folder: str
    stamp: int
    salt: str
    priority: int
    due: float | None  # None: at once
    tag: str
    count: int

    @classmethod
    def make(cls, priority: int, due: float | None, stamp: int, tag: str, count: int) -> PutName:
        rank = f"{PRIORITY_MAX - priority:03x}"
        head = f"0{rank}" if due is None else f"1{digits(round(due * 1e6), 11)}{rank}"
        grain = salt()
        folder = f"{head}-{digits(stamp, 11)}-{grain}-{tag}-{count}"
        return cls(folder, stamp, grain, priority, due, tag, count)

    @property
    def mixed(self) -> bool:
        return self.tag == MIXED

    def id_of(self, index: int) -> str:
        return f"{self.folder}.{index}"

    def place(self, index: int) -> tuple[int, str, int]:
        """The position of a job in put order."""
        return self.stamp, self.salt, index

    def key(self, index: int) -> str:
        """The name of a job's record in `dead/` or `ended/`; it sorts in put order."""
        return f"{digits(self.stamp, 11)}{self.salt}-{index:05d}.{self.id_of(index)}"


@lru_cache(65536)
def read_folder(name: str) -> PutName | None:
    found = _FOLDER.fullmatch(name)
    if found is None:
        return None
    try:
        return PutName(
            name,
            _number(found["stamp"]),
            found["salt"],
            PRIORITY_MAX - int(found["now"] or found["later"], 16),
            None if found["due"] is None else _number(found["due"]) / 1e6,
            found["tag"],
            int(found["count"]),
        )
    except ValueError:  # a letter that is not one of our digits
        return None


def read_id(job_id: str) -> tuple[PutName, int] | None:
    """The put and the index in it; None for an id of another form."""
    folder, dot, index = job_id.partition(".")
    if not dot or not index.isascii() or not index.isdigit() or len(index) > 5:
        return None
    put = read_folder(folder)
    if put is None or int(index) >= put.count or index != str(int(index)):
        return None
    return put, int(index)


def place_after(job_id: str) -> tuple[int, str, int]:
    """The position after which a page begins."""
    found = read_id(job_id)
    if found is None:
        raise ConfigError(
            f"after = {job_id!r} is not a job id; give the last id of the previous page"
        )
    return found[0].place(found[1])


def safe_name(name: str) -> str:
    """A queue's name as a folder name that every store allows; different names stay different."""
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", name):
        return name
    text = "".join(
        char
        if re.fullmatch(r"[A-Za-z0-9_-]", char)
        else "".join(f"={b:02x}" for b in char.encode())
        for char in name
    )
    if len(text) <= 100:
        return text
    return f"{text[:50]}=={hashlib.sha256(name.encode()).hexdigest()[:40]}"


# The sizes


class EntryKind(Enum):
    """The meanings of entries in a chain."""

    CLAIM = "claim"  # leased: `count` jobs for `duration`; the rest of a fresh slice stays free
    RENEW = "renew"  # the lease lasts for `duration` from here
    REPORT = "renew, with progress"  # as RENEW; its content has the progress of all jobs left
    CANCEL = "cancel"  # its content says which of the leased jobs are asked to cancel
    REST = "rest"  # some of the jobs ended, `count` are left under the same lease
    REST_MOVE = "rest, with moves"  # as REST, and the ended jobs have to be moved
    REST_GUARD = "rest, guarded"  # as REST_MOVE, and nobody claims the rest before they are moved
    BURST = "burst"  # from here each job left has a chain of its own, under the same lease
    BACK = "back"  # free again after `duration`; the attempt counts
    BACK_FREE = "back, not counted"  # without errors
    SUM = "back, with the record"  # as BACK; its content sums up the entries before it
    END = "end"  # nothing is left
    MOVE = "end, with moves"  # as END, and the ended jobs have to be moved


@dataclass(frozen=True, slots=True)
class EntryMeaning:
    kind: EntryKind
    duration: float = 0.0
    count: int = 0
    ahead: bool = False  # a CLAIM by a worker that may not start its jobs at once


_PERIOD = 8192
_DECADE = [
    *(n / 100 for n in range(100, 200, 10)),
    *(n / 100 for n in range(200, 500, 25)),
    *(n / 100 for n in range(500, 1000, 50)),
]
#: Leases that a size can encode: 10 ms to eleven days, at most 10 % apart.
LEASES = [round(m * 10.0**e, 6) for e in range(-2, 6) for m in _DECADE]
#: Delays that a size can encode: 10 ms to thirty years, two digits exact.
DELAYS = [round(n * 10.0**e, 6) for e in range(-3, 8) for n in range(10, 100)]
_SINGLE = {
    kind: 98 + step
    for step, kind in enumerate(
        (
            EntryKind.END,
            EntryKind.MOVE,
            EntryKind.BURST,
            EntryKind.BACK,
            EntryKind.BACK_FREE,
            EntryKind.SUM,
            EntryKind.CANCEL,
        )
    )
}
_REST, _REST_MOVE, _REST_GUARD, _RENEW = 64, 81, 105, 128
_BACK, _BACK_FREE, _SUM, _REPORT = 4480, 5470, 6460, 7450


def rounded_lease(lease: float) -> float:
    """The shortest lease that a size can encode and that is not below this one."""
    return LEASES[bisect.bisect_left(LEASES, lease - 1e-9)]


def rounded_delay(delay: float) -> float:
    if not delay:
        return 0.0
    return DELAYS[min(bisect.bisect_left(DELAYS, delay - 1e-9), len(DELAYS) - 1)]


def _meanings() -> dict[int, EntryMeaning]:
    table = {code: EntryMeaning(kind) for kind, code in _SINGLE.items()}
    for left in range(SLICE + 1):
        table[_REST + left] = EntryMeaning(EntryKind.REST, count=left)
        table[_REST_MOVE + left] = EntryMeaning(EntryKind.REST_MOVE, count=left)
        table[_REST_GUARD + left] = EntryMeaning(EntryKind.REST_GUARD, count=left)
    for step, lease in enumerate(LEASES):
        table[_RENEW + step] = EntryMeaning(EntryKind.RENEW, lease)
        table[_REPORT + step] = EntryMeaning(EntryKind.REPORT, lease)
        for count in range(1, SLICE + 1):
            table[_RENEW + 256 * count + step] = EntryMeaning(EntryKind.CLAIM, lease, count)
    for step, delay in enumerate(DELAYS):
        table[_BACK + step] = EntryMeaning(EntryKind.BACK, delay)
        table[_BACK_FREE + step] = EntryMeaning(EntryKind.BACK_FREE, delay)
        table[_SUM + step] = EntryMeaning(EntryKind.SUM, delay)
    return table


_MEANINGS = _meanings()
_CODES = {meaning: code for code, meaning in _MEANINGS.items()}


def write_entry(meaning: EntryMeaning, content: dict[str, Any]) -> bytes:
    """An entry's body. The nonce distinguishes our write from an equal one by another handle."""
    whole = {"nonce": secrets.token_hex(6), **content}
    text = json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()
    code = _CODES[replace(meaning, ahead=False) if meaning.ahead else meaning]
    periods = max(math.ceil((len(text) - code) / _PERIOD), 0)
    if meaning.kind is EntryKind.CLAIM:
        periods += periods % 2 != meaning.ahead  # an odd number of them says that it is ahead
    return text.ljust(code + periods * _PERIOD)


#: The sizes of records in `results/` encode how long these are kept; see `padded_result`.
_RESULT_PERIOD = 2048


def padded_result(record: bytes, keep: float, *, cancelled: bool) -> bytes:
    """A record in `results/`, whose size says how long it is kept, and whether it is cancelled."""
    code = 2 * DELAYS.index(rounded_delay(keep)) + cancelled
    return record.ljust(len(record) + (code - len(record)) % _RESULT_PERIOD)


def kept_for(size: int) -> float:
    """How long a record in `results/` of this size is kept, in seconds."""
    return DELAYS[min(size % _RESULT_PERIOD // 2, len(DELAYS) - 1)]


def read_size(size: int) -> EntryMeaning | None:
    meaning = _MEANINGS.get(size % _PERIOD)
    if size >= _PERIOD and meaning is not None and meaning.kind is EntryKind.CLAIM:
        return replace(meaning, ahead=bool(size // _PERIOD % 2))
    return meaning
