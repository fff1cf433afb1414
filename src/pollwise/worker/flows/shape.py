"""How the results of the last jobs of a flow are nested in lists, as a text that fits in a header.

.           the result of one job
(3.)        a list: the results of a group of three jobs
(2(2.).)    a group with two members: a group of two jobs, and one job
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pollwise.errors import JobError

#: The shape of one result.
ONE = "."
#: The longest shape, in characters, and how deep groups may be nested.
SHAPE_LENGTH_MAX, GROUPS_DEEP_MAX = 1_000, 50

_TOKEN = re.compile(r"(\d*)([.(])|(\))")
_SHAPE = re.compile(r"(?:(?:[1-9][0-9]*)?[.(]|\))+")


def shape_of_group(members: Sequence[str]) -> str:
    """The shape of the results of a group, from those of its members."""
    runs = ((len(list(same)), shape) for shape, same in itertools.groupby(members))
    shape = "(" + "".join(f"{count if count > 1 else ''}{each}" for count, each in runs) + ")"
    if len(shape) > SHAPE_LENGTH_MAX:
        raise JobError(
            f"the {len(members)} members of this group end in groups of too many different sizes. "
            "Let each end in one job, with .then(task)"
        )
    deep = max(itertools.accumulate({"(": 1, ")": -1}.get(each, 0) for each in shape))
    if deep > GROUPS_DEEP_MAX:
        raise JobError(f"groups are nested {deep} deep; the limit is {GROUPS_DEEP_MAX}")
    return shape


def fits(shape: str, count: int) -> bool:
    """True if a shape, which anybody may have written, is valid for this many results."""
    if len(shape) > SHAPE_LENGTH_MAX or not _SHAPE.fullmatch(shape):
        return False
    counts, times = [0], [1]  # for each open group: its results so far, and its repetitions
    for number, what, _ in (match.groups() for match in _TOKEN.finditer(shape)):
        if what == ONE:
            counts[-1] += int(number or 1)
        elif what is not None:
            counts.append(0)
            times.append(int(number or 1))
        elif len(times) > 1 and counts[-1]:
            inside = counts.pop() * times.pop()
            counts[-1] += inside
        else:
            return False
        if len(times) > GROUPS_DEEP_MAX + 1:
            return False
    return counts == [count]


def in_shape(shape: str, results: Sequence[Any]) -> Any:
    """Nest results, given in order, as the shape says; missing results become None."""
    tokens = [match.groups() for match in _TOKEN.finditer(shape)]
    found, _ = _items(tokens, 0, iter(results))
    return found[0] if found else None


def _items(
    tokens: Sequence[tuple[str | None, ...]], at: int, results: Iterator[Any]
) -> tuple[list[Any], int]:
    """The values up to the end of a group, and where the shape goes on."""
    found: list[Any] = []
    while at < len(tokens) and tokens[at][2] is None:
        count, what, _ = tokens[at]
        after = at + 1
        for _ in range(int(count or 1)):
            if what == ONE:
                found.append(next(results, None))
            else:
                inside, after = _items(tokens, at + 1, results)
                found.append(inside)
        at = after
    return found, at + 1
