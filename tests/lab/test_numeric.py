"""What the lab needs is asked for by name, and only by the lab."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules[{name!r}] = None\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "module",
    ["replay.engine", "replay.limits", "traces.reading", "traces.synthetic", "replay.fast"],
)
def test_without_numpy_the_lab_says_what_to_install(module: str) -> None:
    done = run(WITHOUT.format(name="numpy") + f"import pollwise.lab.{module}")
    assert "MissingExtra: the lab needs an extra: pip install 'pollwise[lab]'" in done.stderr


def test_without_numba_a_fast_replay_says_what_to_install() -> None:
    code = (
        "from pollwise.lab.traces.synthetic import workload\n"
        "from pollwise.lab.replay.engine import replay, reference\n"
        "from pollwise import Adaptive\n"
        "trace = workload('steady', 0, 0.1)\n"
        "print(reference(trace, Adaptive()).found)\n"
        "replay(trace, Adaptive())\n"
    )
    done = run(WITHOUT.format(name="numba") + code)
    assert done.stdout.strip().isdecimal()
    assert "MissingExtra: the lab needs an extra: pip install 'pollwise[lab]'" in done.stderr


def test_nothing_else_loads_numpy_or_numba() -> None:
    code = (
        "import sys, pollwise.cli, pollwise.cli.lab.commands, pollwise.lab.traces.record, "
        "pollwise.lab.prices\n"
        "from pollwise import *\n"
        "print([name for name in ('numpy', 'numba') if name in sys.modules])\n"
    )
    assert run(code).stdout.strip() == "[]"


def test_the_lab_loads_numba_only_when_it_compiles() -> None:
    code = (
        "import sys, pollwise.lab.replay.engine, pollwise.lab.replay.limits\n"
        "print('numba' in sys.modules)"
    )
    assert run(code).stdout.strip() == "False"
