"""Regular expressions for text of unknown origin: answers of servers, output, values of readings.

Python's `re` backtracks: `^(a+)+$` on a page of fifty letters does not end, and nothing can stop
it. RE2 takes time proportional to the text, in bounded memory, and does not hold the interpreter
while it searches. A long text is searched in a thread, so the event loop goes on; the caller has
a deadline. Lookaround and backreferences cannot be had in linear time: they are refused when a
pattern is compiled, with what to write instead.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from concurrent.futures import Future
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pollwise.durations import shown
from pollwise.errors import ConfigError, MissingExtra, ProbeError

if TYPE_CHECKING:
    from pollwise.runtime.executor.threads import DaemonThreads

#: Maximum length of a pattern, in characters, and of its program, in instructions. The time of a
#: search is at most proportional to the text times the program.
PATTERN_MAX = 4096
PROGRAM_MAX = 10_000
#: Maximum memory of a compiled pattern, in bytes, the states that a search adds included.
MEMORY_MAX = 8 * 1024 * 1024
#: Length of the text that `matches` searches, in characters.
SHORT_MAX = 4096
#: A search of more bytes times instructions runs in a thread. In the worst case this many take
#: about 10 ms.
INLINE_MAX = 1_000_000
#: Maximum number of threads that search.
THREADS_MAX = 4
#: Text is decoded in pieces of this many bytes: Python does nothing else while it decodes one.
_PIECE = 64 * 1024

_NO_LOOKAROUND = "match what stands around it too, and put the part you want into a group"
#: What to do about what RE2 refuses, by the end of its message.
_ADVICE = (
    (re.compile(r"\(\?<?[=!]\Z"), f"lookahead and lookbehind are not possible; {_NO_LOOKAROUND}"),
    (re.compile(r"\\[1-9]\Z|\(\?P\Z"), "a reference to an earlier group is not possible; write it"),
    (re.compile(r"\(\?\(\Z"), "a condition on a group is not possible; write two targets, or a|b"),
    (re.compile(r"\\Z\Z"), r"write \z for the end of the text"),
    (re.compile(r"\\[uUN]\Z"), r"write a character by its number as \x{20AC}, or as it is"),
    (re.compile(r"operator: [*+?}]\+\Z|\(\?>\Z"), "nothing backtracks here; leave it out"),
    (re.compile(r"\(\?[aLux]\Z"), "the flags are i, m, s and U"),
    (re.compile(r"repetition size"), "a part is repeated 1,000 times at most"),
    (re.compile(r"too large"), "repeat less, or use smaller character classes"),
)


class Pattern:
    """A pattern of one user, such as a target. `^` and `$` match at every line.

    Create it with `compile_pattern`. Users of the same text share the compiled program.
    """

    __slots__ = ("_late", "_program", "_size", "text")

    def __init__(self, text: str) -> None:
        self.text: str = text
        self._program, self._size = _compiled(text)
        #: The search whose caller was cancelled, while it still runs.
        self._late: Future[str | None] | None = None

    def matches(self, text: str) -> bool:
        """True if the pattern occurs in a short text: the value of a reading, a fact.

        Only the first 4,096 characters are searched.
        """
        return self._search(text[:SHORT_MAX].encode("utf-8", "replace")) is not None

    async def search(self, content: bytes | str, encoding: str = "utf-8") -> str | None:
        """The first group of the first match, or the whole match if the pattern has no group.

        None if it does not match; a group that took no part is "". The caller limits the size of
        the content, and cancels this call at its deadline. While the search of an earlier call is
        still running after its deadline, ProbeError is raised at once.
        """
        if len(content) * self._size <= INLINE_MAX:
            return self._search(as_utf8(content, encoding))
        if self._late is not None:
            raise ProbeError(
                f"the search for {shown(self.text)} in an earlier answer is still running after "
                "its deadline; simplify the pattern, or lower limit"
            )
        search = _threads().submit(lambda: self._search(as_utf8(content, encoding)))
        try:
            return await asyncio.wrap_future(search)
        except asyncio.CancelledError:
            self._late = search
            search.add_done_callback(self._forget)
            raise

    def _forget(self, _: object) -> None:
        self._late = None

    def _search(self, raw: bytes) -> str | None:
        found = self._program.search(raw)
        if found is None:
            return None
        taken: bytes = (found[1] if self._program.groups else found[0]) or b""
        return taken.decode("utf-8", "replace")


def compile_pattern(text: str) -> Pattern:
    """A pattern; ConfigError if it is not one, with what to do."""
    return Pattern(text)


def as_utf8(content: bytes | str, encoding: str = "utf-8") -> bytes:
    """Text as valid UTF-8; what cannot be decoded is replaced."""
    if isinstance(content, str):
        pieces = (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
        return b"".join(piece.encode("utf-8", "replace") for piece in pieces)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    try:
        decoded = [
            decoder.decode(content[at : at + _PIECE]).encode("utf-8", "replace")
            for at in range(0, len(content), _PIECE)
        ]
        return b"".join(decoded) + decoder.decode(b"", True).encode("utf-8", "replace")
    except UnicodeError:  # UTF-16 in pieces must begin with a mark of its byte order
        return content.decode(encoding, "replace").encode("utf-8", "replace")


@lru_cache(4096)
def _compiled(text: str) -> tuple[Any, int]:
    """A compiled pattern, and the size of its program."""
    re2 = _engine()
    if len(text) > PATTERN_MAX:
        raise ConfigError(
            f"{shown(text)} has {len(text):,} characters; the limit for a regular expression is "
            f"{PATTERN_MAX:,}"
        )
    if (only_maximum := re.search(r"(?<!\\)\{,(\d+)\}", text)) is not None:
        # RE2 would take it literally.
        raise ConfigError(f"{shown(text)}: write {only_maximum[0]} as {{0,{only_maximum[1]}}}")
    options = re2.Options()
    options.max_mem = MEMORY_MAX
    options.log_errors = False
    try:
        program = re2.compile(f"(?m){text}", options)
    except UnicodeEncodeError:
        raise ConfigError(f"{shown(text)} has a character that is not valid") from None
    except re2.error as error:
        raise ConfigError(
            f"{shown(text)} is not a regular expression that can be used here: {_reason(error)}"
        ) from None
    size = max(program.programsize, program.reverseprogramsize, 1)
    if size > PROGRAM_MAX:
        raise ConfigError(
            f"{shown(text)} is too large: it has {size:,} instructions, the limit is "
            f"{PROGRAM_MAX:,}; repeat less, or use smaller character classes"
        )
    return program, size


def _reason(error: Exception) -> str:
    raw = error.args[0]
    said = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    said = said.replace("(?m)", "", 1)[:160]
    advice = next((what for pattern, what in _ADVICE if pattern.search(said)), "")
    return f"{said}; {advice}" if advice else said


@cache
def _threads() -> DaemonThreads:
    # Not the event loop's own threads: those resolve names, which must not wait for searches.
    from pollwise.runtime.executor.threads import DaemonThreads

    return DaemonThreads(THREADS_MAX, "pollwise-search")


def _engine() -> Any:
    try:
        import re2
    except ImportError as error:
        raise MissingExtra("a regular expression in a target or a condition", "fleet") from error
    return re2
