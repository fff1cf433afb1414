"""Every error Pollwise raises, in one tree.

    PollwiseError
    ├── ConfigError          a setting, argument or URL is wrong; nothing was started
    ├── JobError             a job cannot be put as it is; nothing was put
    │   ├── PayloadError     not JSON, or too large
    │   ├── UniqueConflict   the same `unique` with another kind or payload
    │   ├── Compensated      not retried: the jobs of `on_failure` have started
    │   └── Unsupported      this store cannot do what was asked
    ├── OutboxError          a record cannot be put as it is, or not by this connection
    ├── HandlerError         a handler cannot be registered as it is
    ├── ContextFailed        the context of a worker raised when it was entered
    ├── JobFailed            a job whose result was waited for has none
    ├── NotYet               what `until` waits for did not happen within its timeout
    ├── CodecError           an encoded payload or result cannot be decoded: it was changed
    │   └── KeyMissing       this process has no key or codec for it; another may have
    ├── LeaseLost            the lease is no longer ours; nothing was changed
    ├── StoreError           the store refused a call
    │   ├── StoreUnavailable   it may work later (locked, unreachable, full): polls back off
    │   ├── SchemaError        its tables are not Pollwise's, or newer than this code
    │   ├── CursorMoved        another process polls the same source under the same name
    │   └── SourceClosed       a closed source was polled
    ├── HandlerTimeout       a handler ran longer than its timeout
    ├── HandlerCrashed       the process of a handler died
    ├── ProbeError           a poll of a target or a source failed; it may work later
    │   ├── ProbeTimeout     it ran longer than the target's timeout
    │   └── ProbeRefused     it will never work: not allowed, not found, not understood
    ├── PublishError         a broker or receiver did not accept a record; it may later
    │   └── PublishRefused   it will never accept this one
    ├── ChannelError         a channel could not send a notice; it may later, unless permanent
    ├── SignatureError       a webhook has no valid signature, or an old one
    └── MissingExtra         an optional dependency is not installed

    Signal (raised by handlers, not an error)
    ├── Reject               dead now, no more attempts
    ├── Cancelled            its job was cancelled, and it stopped
    └── Snooze               run again later; this attempt does not count

A message says what was wrong, with which value, from where, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollwise.durations import Duration


def did_you_mean(given: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The end of an error about an unknown name: the nearest known one, else all of them.

    otherwise: what to say instead if no known name is near.
    """
    from difflib import get_close_matches

    listed = list(known)
    near = get_close_matches(given, listed, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(listed)}" if otherwise is None else otherwise


class PollwiseError(Exception):
    """The root of all errors raised by Pollwise."""


class ConfigError(PollwiseError, ValueError):
    """A setting, argument or URL is wrong. Raised before anything starts."""

    permanent = True  # a retry cannot help


class JobError(PollwiseError, ValueError):
    """A job cannot be put as it is. No job of its batch was put."""


class Compensated(JobError):
    """A dead job was not retried: its failure has started the jobs of `on_failure`.

    Nothing was changed. `queue.retry(..., anyway=True)` retries it.
    """


class PayloadError(JobError):
    """The payload is not JSON, or larger than the limit."""


class UniqueConflict(JobError):
    """The same `unique` is already used by a job with another kind or payload."""

    #: The `unique`, if it is known.
    unique: str | None = None


class Unsupported(JobError):
    """This store cannot do what was asked; see `queue.capabilities`."""


class OutboxError(PollwiseError, ValueError):
    """A record, or the transaction to put it in, is wrong. Nothing was put."""

    permanent = True


class HandlerError(PollwiseError, TypeError):
    """A handler cannot be registered: its signature or its kind is wrong."""


class ContextFailed(PollwiseError):
    """The context of a worker raised when it was entered; the cause is what it raised."""


class CodecError(PollwiseError, ValueError):
    """A payload or a result cannot be decoded: it was changed, or belongs to another job."""

    permanent = True


class KeyMissing(CodecError):
    """A payload or a result needs a key or a codec that this process does not have."""


class LeaseLost(PollwiseError):
    """The lease ran out and others may have the job; nothing was changed for the claims in `lost`.

    Raise the `lease`, or find what blocks the event loop: leases are renewed from it.
    """

    def __init__(self, lost: Sequence[str]) -> None:
        self.lost: tuple[str, ...] = tuple(lost)
        shown = ", ".join(self.lost[:5]) + (" …" if len(self.lost) > 5 else "")
        super().__init__(
            f"lease lost on {len(self.lost)} job(s): {shown}. Another worker may have them now; "
            "nothing was changed for them. Raise `lease` above the longest stall of this process."
        )


class StoreError(PollwiseError):
    """The store refused a call; the message says what to do."""

    permanent = True


class StoreUnavailable(StoreError):
    """The store cannot answer now but may later: locked, unreachable or full."""

    permanent = False


class SchemaError(StoreError):
    """The store's tables are newer than this code, or not Pollwise's."""


class CursorMoved(StoreError):
    """Another process polls the same source under the same name; nothing was changed.

    This ends the poll loop. Give each source its own name, or let only one process poll it.
    """

    permanent = True


class SourceClosed(StoreError):
    """A closed source was polled; this ends the poll loop. Open the source again."""

    permanent = True


class HandlerTimeout(PollwiseError, TimeoutError):
    """A handler ran longer than its `timeout`."""


class HandlerCrashed(PollwiseError):
    """The process that ran a handler (`process=True`) died: a signal, out of memory, `os._exit`."""


class ProbeError(PollwiseError):
    """A poll of a target failed. It may work later.

    retry_after: the source asked not to be polled again for this many seconds.
    """

    permanent = False
    retry_after: float | None = None


class ProbeTimeout(ProbeError, TimeoutError):
    """A poll ran longer than the target's `timeout`."""


class ProbeRefused(ProbeError):
    """A poll failed permanently: not allowed, not found, or not understood.

    A retry cannot help, so the target is dead at once.
    """

    permanent = True


class PublishError(PollwiseError):
    """A broker or receiver did not accept a record, or did not confirm it; a retry may help.

    retry_after: how many seconds the receiver asked to wait, if it did.
    """

    permanent = False

    def __init__(self, text: str, *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(text)


class PublishRefused(PublishError):
    """This record will never be accepted: too large, or with a name that is not allowed."""

    permanent = True


class ChannelError(PollwiseError):
    """A channel could not send a notice. The message contains no secrets.

    permanent: True if this notice will never be sent, so that a retry cannot help.
    retry_after: how many seconds the receiver asked to wait, if it did.
    """

    def __init__(
        self, text: str, *, permanent: bool = False, retry_after: float | None = None
    ) -> None:
        self.permanent = permanent
        self.retry_after = retry_after
        super().__init__(text)


class SignatureError(PollwiseError, ValueError):
    """A webhook has no signature, a wrong one, or one that is too old: do not trust it."""

    permanent = True


class MissingExtra(PollwiseError, ImportError):
    """An optional dependency is missing; the message has the command that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'pollwise[{extra}]'")


class JobFailed(PollwiseError):
    """A job whose result was waited for is dead, was cancelled, or does not exist any more.

    job_id: its id. state: "dead", "cancelled", or None if the job does not exist.
    traceback: where the error in the handler came from, as text, if it is known.
    """

    def __init__(
        self, job_id: str, state: str | None, text: str, traceback: str | None = None
    ) -> None:
        self.job_id = job_id
        self.state = state
        self.traceback = traceback
        super().__init__(text)
        if traceback:
            self.add_note(f"In the worker:\n{traceback}")


class NotYet(PollwiseError, TimeoutError):
    """What `until` waits for did not happen within its timeout.

    value: what the last poll returned; None if none returned anything. polls: how many there were.
    """

    def __init__(self, text: str, *, value: object = None, polls: int = 0) -> None:
        self.value = value
        self.polls = polls
        super().__init__(text)


class Signal(Exception):
    """Raised by a handler to say how its job is settled."""


class Reject(Signal):
    """Settle this job as dead now, whatever attempts are left."""

    def __init__(self, reason: str = "rejected by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class Cancelled(Signal):
    """Settle this job as cancelled: its handler stopped because somebody asked for that.

    reason: kept with the job as its error, if given.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason or "cancelled by its handler")


class Snooze(Signal):
    """Run this job again after `delay`; this run does not count as an attempt."""

    def __init__(self, delay: Duration) -> None:
        from pollwise.durations import seconds

        self.delay: float = seconds(delay, "Snooze delay")
        super().__init__(f"snoozed for {self.delay:g} s")
