"""systemd: is a unit in the state it should be in?

    [[target]]
    name = "web server"
    type = "systemd"
    unit = "nginx.service"

`systemctl show` is asked, without a shell and without privileges. It reads what systemd knows; no
unit is started, stopped or loaded for good.
"""

from __future__ import annotations

import asyncio

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.command import check_system, run_program
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target

OUTPUT_MAX = 64 * 1024
NAME_MAX = 255
#: States of a unit, as systemd names them.
STATES = (
    "active", "reloading", "refreshing", "inactive", "failed", "activating", "deactivating",
    "maintenance",
)  # fmt: skip
_PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "Result", "NRestarts", "ExecMainStatus",
    "MemoryCurrent", "LoadError",
)  # fmt: skip
_SIGNS = frozenset(":-_.\\@")
#: A memory counter that systemd does not keep has this value.
_UNSET = 2**64 - 1
#: The locale of messages, and no colours.
_ENV = {"LC_ALL": "C", "SYSTEMD_COLORS": "0"}

FACTS = {
    "value": "the state of the unit: `active (running)`",
    "state": "`active`, `inactive`, `failed`, `activating`, …",
    "sub": "the state in words of its type: `running`, `exited`, `waiting`, …",
    "result": "`success`, or why its last run failed: `exit-code`, `signal`, `oom-kill`, …",
    "restarts": "how often systemd restarted the service by itself",
    "exit": "exit code of the last run of a service",
    "memory": "memory of the unit in bytes, if systemd counts it",
    "ms": "milliseconds until systemd answered",
}


class SystemdProbe:
    """Asks for the state of a unit. Options: unit, expect (a state or a list of them, "active"),
    user (ask the user's own systemd)."""

    __slots__ = ("_expect", "_unit", "_words")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        check_system(options)
        self._unit = _checked_unit(options)
        self._expect = _checked_states(options)
        scope = "--user" if options.flag("user", False) else "--system"
        asked = f"--property={','.join(_PROPERTIES)}"
        self._words = ("systemctl", scope, "--no-pager", "show", asked, "--", self._unit)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        ended = await run_program(self._words, OUTPUT_MAX, env=_ENV)
        if ended.status != 0:
            raise failed(f"systemctl {ended.how}{ended.complaint}")
        lines = ended.output.decode("utf-8", "replace").splitlines()
        told = dict(line.split("=", 1) for line in lines if "=" in line)
        state, sub = told.get("ActiveState", ""), told.get("SubState", "")
        if told.get("LoadState") in ("not-found", "bad-setting", "error", "masked"):
            why = told.get("LoadError", "").strip('" ')[:160]
            said = f"cannot be loaded ({told['LoadState']}){f': {why}' if why else ''}"
            if told["LoadState"] == "not-found":
                said = "does not exist"
            raise failed(f"unit {self._unit!r} {said}", permanent=True)
        if not state:
            raise failed("systemctl did not print the state of the unit")
        facts: dict[str, Plain] = {"state": state[:80], "sub": sub[:80]}
        facts["ms"] = round((loop.time() - began) * 1000, 1)
        if result := told.get("Result"):
            facts["result"] = result[:80]
        for name, key in (
            ("restarts", "NRestarts"),
            ("exit", "ExecMainStatus"),
            ("memory", "MemoryCurrent"),
        ):
            number = told.get(key, "")
            if number.isdecimal() and len(number) < 20 and int(number) != _UNSET:
                facts[name] = int(number)
        value = f"{state} ({sub})" if sub else state
        if state not in self._expect:
            why = f", result {result}" if result and result != "success" else ""
            raise failed(f"unit {self._unit!r} is {value}{why}"[:300])
        return Reading(value, None, facts, f"{value}, {facts['ms']} ms")


def _checked_unit(options: ProbeOptions) -> str:
    unit = options.text("unit", needed=True)
    if not unit:
        return "-"
    sound = unit.isascii() and all(c.isalnum() or c in _SIGNS for c in unit)
    if not sound or unit.startswith("-") or len(unit) > NAME_MAX:
        options.wrong("unit", f"= {unit[:80]!r} is not the name of a unit; write 'nginx.service'")
    return unit


def _checked_states(options: ProbeOptions) -> frozenset[str]:
    given = options.raw("expect")
    if given is None:
        return frozenset({"active"})
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, (list, tuple)) or not listed:
        options.wrong("expect", f"must be one of {', '.join(STATES)}, or a list of them")
        return frozenset({"active"})
    for each in listed:
        if each not in STATES:
            options.wrong("expect", f"has {each!r}; the states are {', '.join(STATES)}")
    return frozenset(each for each in listed if isinstance(each, str))


make = SystemdProbe
