"""Which worker may take which job: a job's `requires` against a worker's `capabilities`.

A claim on a queue can only ask for kinds, so the requirement of a job becomes part of its kind
there: `build` without requirements, otherwise `build#<hash>`. So every store matches in the claim
itself, and no job is claimed only to be given back.

    requires: {"platform": "ios", "memory_gb": ">=8", "region": ["eu", "us"]}

A string, number or boolean asks for that value; a list for any of its values; text that begins with
`>=`, `<=`, `>`, `<`, `!=` or `==` compares. A capability may be a list of values. A worker does not
have what it does not list.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from pollwise.errors import JobError
from pollwise.runtime.jobs import NAME_LENGTH_MAX, checked_name

#: The most entries of `requires`, and the longest name or value in it, in characters.
REQUIRES_MAX = 20
WORD_LENGTH_MAX = 100
#: The most capabilities of a worker, and the most values that one of them lists.
CAPABILITIES_MAX = 50
VALUES_MAX = 100
#: Separates a kind from the hash of its requirement.
MARK = "#"
_HASH_BYTES = 8
KIND_LENGTH_MAX = NAME_LENGTH_MAX - len(MARK) - 2 * _HASH_BYTES
#: The capability that limits the kinds of jobs that a worker takes.
KINDS = "kinds"

Plain = str | int | float | bool
Requires = Mapping[str, Any]
Capabilities = Mapping[str, Any]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*\Z")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?\Z")
_VERSION = re.compile(r"\d+(?:\.\d+)*\Z")
_EXPRESSION = re.compile(r"(>=|<=|!=|==|>|<)\s*(.*)\Z", re.DOTALL)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def checked_kind(kind: object) -> str:
    """Check a kind of a user; the mark is reserved for the hash."""
    name = checked_name(kind, "kind")
    if MARK in name or len(name) > KIND_LENGTH_MAX:
        raise JobError(
            f"kind = {name[:40]!r} must not contain {MARK!r} and have at most {KIND_LENGTH_MAX} "
            "characters"
        )
    return name


def checked_requires(requires: object) -> dict[str, Any]:
    """Check what a job requires; raises `JobError`."""
    entries = _entries(requires, "requires", REQUIRES_MAX)
    for name, value in entries.items():
        for each in _values(value, f"requires.{name}"):
            _check_expression(name, each)
    return entries


def checked_capabilities(capabilities: object) -> dict[str, Any]:
    """Check the capabilities of a worker; raises `JobError`."""
    entries = _entries(capabilities, "capabilities", CAPABILITIES_MAX)
    for name, value in entries.items():
        _values(value, f"capabilities.{name}", VALUES_MAX)
    return entries


def queue_kind(kind: str, requires: Requires) -> str:
    """The kind of a job in the queue, with the hash of its requirement."""
    return f"{kind}{MARK}{hash_of(requires)}" if requires else kind


def hash_of(requires: Requires) -> str:
    text = json.dumps(requires, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()


def satisfies(capabilities: Capabilities, kind: str, requires: Requires) -> bool:
    """True if a worker with these capabilities may take such a job."""
    return unmet(capabilities, kind, requires) is None


def unmet(capabilities: Capabilities, kind: str, requires: Requires) -> str | None:
    """The first requirement that is not met, as text; None if all are."""
    only = capabilities.get(KINDS)
    if only is not None and kind not in (only if isinstance(only, list) else [only]):
        return f"takes kind {kind!r}"
    for name, wanted in requires.items():
        if name not in capabilities or not _meets(capabilities[name], wanted):
            return f"has {shown(name, wanted)}"
    return None


def shown(name: str, wanted: Any) -> str:
    """A requirement as readable text: `memory_gb >= 8`."""
    if isinstance(wanted, list):
        return f"{name} in {json.dumps(wanted, ensure_ascii=False)}"
    found = _EXPRESSION.match(wanted) if isinstance(wanted, str) else None
    sign, operand = found.groups() if found else ("=", wanted)
    text = json.dumps(operand) if isinstance(operand, bool) else str(operand)
    return f"{name} {sign} {text}"


def waiting_for(kind: str, requires: Requires, live: list[Capabilities]) -> str | None:
    """Why no live worker can take such a job; None if one can."""
    if not live:
        return "no live worker"
    reasons = [unmet(capabilities, kind, requires) for capabilities in live]
    if None in reasons:
        return None
    nobody = [f"has {shown(name, requires[name])}" for name in met_by_none(requires, live)]
    if nobody:
        return "no live worker " + " and ".join(nobody[:3])
    if not requires:
        return f"no live worker {reasons[0]}"
    together = " and ".join(shown(name, wanted) for name, wanted in requires.items())
    return f"no live worker of kind {kind!r} has all of {together}"


def met_by_none(requires: Requires, live: Sequence[Capabilities]) -> list[str]:
    """The names of the requirements that no live worker meets, each taken alone."""
    return [
        name
        for name, wanted in requires.items()
        if not any(name in has and _meets(has[name], wanted) for has in live)
    ]


def _entries(given: object, what: str, limit: int) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise JobError(f'{what} must be an object, such as {{"platform": "ios"}}')
    if len(given) > limit:
        raise JobError(f"{what} has {len(given)} entries; at most {limit}")
    for name in given:
        if not isinstance(name, str) or len(name) > WORD_LENGTH_MAX or not _NAME.match(name):
            raise JobError(
                f"{what} has the name {str(name)[:40]!r}; a name has 1 to {WORD_LENGTH_MAX} "
                "letters, digits or any of _.:/-"
            )
    return dict(given)


def _values(value: object, what: str, limit: int = REQUIRES_MAX) -> list[Plain]:
    values: list[Any] = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= limit:
        raise JobError(f"{what} lists {len(values)} values; give 1 to {limit}")
    for each in values:
        if isinstance(each, str):
            fine = 1 <= len(each) <= WORD_LENGTH_MAX and each.isprintable()
        else:
            fine = isinstance(each, (int, float)) and abs(each) < 1e15
        if not fine:
            raise JobError(
                f"{what} = {str(each)[:40]!r} must be a number, true, false or 1 to "
                f"{WORD_LENGTH_MAX} printable characters"
            )
    return values


def _check_expression(name: str, value: Plain) -> None:
    found = _EXPRESSION.match(value) if isinstance(value, str) else None
    if found is None:
        return
    sign, operand = found.groups()
    if not operand:
        raise JobError(f"requires.{name} = {value!r} compares with nothing; write '{sign}8'")
    if sign in _ORDER and not (_NUMBER.match(operand) or _VERSION.match(operand)):
        raise JobError(
            f"requires.{name} = {value!r} is not a comparison: {sign} needs a number or a "
            "version, such as '>=8' or '>=3.11.2'"
        )


def _meets(has: Any, wanted: Any) -> bool:
    mine = has if isinstance(has, list) else [has]
    if isinstance(wanted, list):
        return any(_meets(has, each) for each in wanted)
    found = _EXPRESSION.match(wanted) if isinstance(wanted, str) else None
    if found is None:
        return any(_equal(each, wanted) for each in mine)
    sign, operand = found.groups()
    if sign == "==":
        return any(_equal(each, operand) for each in mine)
    if sign == "!=":
        return not any(_equal(each, operand) for each in mine)
    return any(_compares(each, _ORDER[sign], operand) for each in mine)


def _equal(has: Plain, wanted: Plain) -> bool:
    """Equal as people mean it: 8 is "8", true is "true", but 1 is not true."""
    if isinstance(has, bool) or isinstance(wanted, bool):
        return _word(has) == _word(wanted)
    if isinstance(has, str) and isinstance(wanted, str):
        return has == wanted
    one, other = _number(has), _number(wanted)
    return one is not None and one == other


def _compares(has: Plain, order: Callable[[Any, Any], bool], operand: str) -> bool:
    if isinstance(has, bool):
        return False
    if not isinstance(has, str):
        number = _number(operand)
        return number is not None and order(has, number)
    if _VERSION.match(has) and _VERSION.match(operand):  # 3.9 comes before 3.11
        mine, theirs = (list(map(int, each.split("."))) for each in (has, operand))
        length = max(len(mine), len(theirs))
        pad = [0] * length
        return order((mine + pad)[:length], (theirs + pad)[:length])
    one, other = _number(has), _number(operand)
    return one is not None and other is not None and order(one, other)


def _number(value: Plain) -> float | None:
    if not isinstance(value, str):
        return float(value)
    return float(value) if _NUMBER.match(value) else None


def _word(value: Plain) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
