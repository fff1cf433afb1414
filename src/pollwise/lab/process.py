"""One comparison in a process of its own, bounded in memory and time: for the web interface.

The parent writes a JSON object to stdin and reads JSON lines from stdout: any number of
{"progress": [3, 40]}, then {"facts": …} or {"error": "…"}. Run it with `python -m`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollwise.errors import ConfigError, PollwiseError
from pollwise.platforms.limits import limit_this_process

if TYPE_CHECKING:
    from pollwise.lab.replay.base import Trace

#: The largest request, in bytes.
REQUEST_MAX = 16 * 1024 * 1024
#: The most characters of a trace file when it is decompressed, and the most arrivals of a trace.
FILE_MAX = 32 * 1024 * 1024
ARRIVALS_MAX = 300_000


def main() -> None:
    """Read a request, compare, and write the answer."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print must not get between the lines

    def say(**what: Any) -> None:
        out.write(json.dumps(what, allow_nan=False) + "\n")

    try:
        asked = json.loads(sys.stdin.buffer.read(REQUEST_MAX))
        limit_this_process(memory=int(asked["memory"]), cpu_seconds=math.ceil(asked["seconds"]))
        say(facts=compared(asked, lambda done, of: say(progress=[done, of])))
    except MemoryError:
        say(error="The comparison needs too much memory. Use a shorter trace, or fewer strategies.")
    except PollwiseError as error:
        say(error=str(error))
    except Exception as error:  # the parent has no other way to learn of it
        say(error=f"The comparison failed: {type(error).__name__}: {error}")


def compared(asked: Mapping[str, Any], progress: Any = None) -> dict[str, Any]:
    """The facts of a comparison.

    asked: `trace` (see `trace_of`), `strategies` as the command line has them, `price` and
        `wait_price`, and `capacity` or None.
    """
    from pollwise.lab.policies import CostTerms, parse
    from pollwise.lab.prices import price_named, wait_price
    from pollwise.lab.report.compare import compare

    price = price_named(asked["price"])
    terms = CostTerms(price.dollars, wait_price(asked["wait_price"]))
    strategies = parse(asked["strategies"], terms)
    told: list[str] = []
    trace = trace_of(asked["trace"], told.append)
    if len(trace.arrivals) > ARRIVALS_MAX:
        raise ConfigError(
            f"{trace.name} has {len(trace.arrivals):,} arrivals; this page compares at most "
            f"{ARRIVALS_MAX:,}. Use a shorter part of it, or `pollwise lab compare`."
        )
    made = compare(
        trace, strategies, price, terms, capacity=asked.get("capacity"), progress=progress
    )
    facts = made.facts()
    return {**facts, "notes": [*(f"The file: {each}." for each in told), *facts["notes"]]}


def trace_of(asked: Mapping[str, Any], tell: Callable[[str], object] | None = None) -> Trace:
    """A trace: of a `workload`, from a `file`, or rebuilt from the `claimed` jobs of a queue.

    tell: is called with what a file was taken for.
    """
    if "workload" in asked:
        from pollwise.lab.traces.synthetic import workload

        return workload(asked["workload"], asked["seed"], asked["hours"])
    if "claimed" in asked:
        from pollwise.lab.traces.claimed import ClaimedJobs
        from pollwise.lab.traces.history import rebuilt

        claimed = [ClaimedJobs(*each) for each in asked["claimed"]]
        if sum(each.found for each in claimed) > ARRIVALS_MAX:
            raise ConfigError(
                f"{asked['name']} has more than {ARRIVALS_MAX:,} arrivals in this time; choose a "
                "shorter one"
            )
        return rebuilt(asked["name"], claimed, asked["since"], asked["until"])
    from pollwise.lab.traces.reading import read

    path = Path(asked["file"])
    try:
        return read(
            path,
            column=asked.get("column"),
            unit=asked.get("unit", "auto"),
            bins=asked.get("bins"),
            values=asked.get("values", "auto"),
            sort=asked.get("sort", False),
            name=asked["name"],
            size_max=FILE_MAX,
            tell=tell,
        )
    except ConfigError as error:  # the name that the reader knows, not where the file is here
        raise ConfigError(str(error).replace(str(path), asked["name"])) from None


if __name__ == "__main__":
    main()
