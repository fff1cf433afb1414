"""What an import brings along, held without a stopwatch: names and commands wait for their use."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import pollwise
from pollwise import sources
from pollwise.cli.app import COMMANDS, app

#: What takes long to import. Some of it somebody needs, but nobody all of it.
HEAVY = {
    "aiobotocore", "asyncio", "asyncpg", "boto3", "botocore", "click", "dataclasses", "email",
    "fastapi", "http", "httpx", "inspect", "logging", "numba", "numpy", "opentelemetry",
    "prometheus_client", "psycopg", "pydantic", "pydantic_settings", "redis", "rich", "socket",
    "sqlalchemy", "sqlite3", "ssl", "starlette", "typer", "urllib", "uvicorn",
}  # fmt: skip


# On standard error, and when all is over: a command prints, and exits.
TELL = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps([*sys.modules]), file=sys.stderr))
"""


def loaded(code: str, *words: str) -> set[str]:
    """The modules that are there after `code`, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", TELL + code, *words], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stderr.splitlines()[-1]))


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def parts(modules: set[str]) -> set[str]:
    """Of Pollwise itself: `worker`, `core`."""
    return {name.split(".")[1] for name in modules if name.startswith("pollwise.")}


def test_pollwise_alone_brings_its_errors_and_version_alone() -> None:
    found = loaded("import pollwise")
    assert parts(found) == {"errors", "version"}
    assert not tops(found) & HEAVY


@pytest.mark.parametrize(
    ("code", "without", "unneeded"),
    [
        ("from pollwise import Adaptive, Retry", {"runtime", "worker"}, {"asyncio"}),
        (
            "import pollwise; pollwise.until_sync(lambda: True, name='x', poll_cost=1)",
            {"fleet", "outbox", "worker", "queues", "storage", "settings"},
            {"pydantic", "rich", "typer", "sqlite3", "httpx"},
        ),
        (
            "from pollwise import Worker",
            {"fleet", "outbox", "settings", "observe", "cli"},
            {"pydantic", "rich", "typer", "sqlite3", "httpx", "psycopg", "redis"},
        ),
        (
            "from pollwise.queues.sqlite import SqliteQueue",
            {"fleet", "outbox", "worker", "settings"},
            {"pydantic", "rich", "typer", "httpx", "psycopg", "redis"},
        ),
        (
            "from pollwise import Outbox",
            {"fleet", "settings"},
            {"pydantic", "rich", "typer", "httpx", "psycopg", "redis", "sqlalchemy"},
        ),
        (
            "from pollwise import Fleet",
            {"outbox", "settings"},
            {"pydantic", "rich", "typer", "httpx", "psycopg", "redis"},
        ),
    ],
)
def test_a_name_brings_what_it_needs(code: str, without: set[str], unneeded: set[str]) -> None:
    found = loaded(code)
    assert not parts(found) & without
    assert not tops(found) & unneeded


def test_the_pytest_plugin_costs_every_pytest_run_nothing() -> None:
    before = loaded("import pytest")
    found = loaded("import pytest, pollwise.testing.plugin")
    assert parts(found) == {"errors", "testing", "version"}
    assert tops(found) - tops(before) == {"pollwise"}


COMMAND = "import sys\nsys.argv[0] = 'pollwise'\nfrom pollwise.cli import main\nmain()"


@pytest.mark.parametrize("words", [["--help"], ["--version"]], ids=" ".join)
def test_the_list_of_commands_imports_none(words: list[str]) -> None:
    found = loaded(COMMAND, *words)
    assert parts(found) == {"cli", "errors", "runtime", "version"}
    assert {name for name in found if name.startswith("pollwise.cli.")} == {
        "pollwise.cli.app",
        "pollwise.cli.output",
    }
    assert not tops(found) & {"asyncio", "pydantic", "httpx", "sqlite3", "ssl"}


def test_a_command_imports_no_other() -> None:
    found = loaded(COMMAND, "worker", "--help")
    others = {place.module for place in COMMANDS.values()} - {"worker.commands"}
    assert not found & {f"pollwise.cli.{module}" for module in others}
    assert not parts(found) & {"fleet", "outbox", "controller", "agent"}
    assert not tops(found) & {"httpx", "sqlite3", "psycopg", "redis"}


# Names


def declared() -> dict[str, str]:
    """What type checkers see in `pollwise/__init__.py`: each name, and where it is imported
    from.
    """
    source = Path(pollwise.__file__).read_text("utf-8")
    (block,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        each.asname or each.name: f"{node.module}:{each.name}" if each.asname else str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }


def test_type_checkers_and_users_see_the_same_names() -> None:
    homes: dict[str, str] = vars(pollwise)["_HOMES"]
    assert homes == declared()
    assert list(homes) == sorted(homes)
    assert set(homes) < set(pollwise.__all__)


#: Imports each module in a process that has imported nothing of Pollwise before, but what is not
#: Pollwise. Prints those that could not be imported.
EACH_FIRST = """
import asyncio, httpx, os, psycopg, pydantic, redis.asyncio, rich, sqlite3, sys, typer
import aiobotocore.session, fastapi, numpy, starlette, uvicorn
from importlib import import_module
for module in sys.argv[1:]:
    assert not any(name.startswith("pollwise") for name in sys.modules)
    child = os.fork()
    if child == 0:
        import_module(module)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(module)
        sys.exit()
"""


def test_every_part_can_be_imported_first() -> None:
    """No circle shows only when another order of imports is tried."""
    modules = {name.partition(":")[0] for name in declared().values()}
    modules |= {f"pollwise.{name.removeprefix('pollwise.')}" for name in vars(pollwise)["_PARTS"]}
    run = subprocess.run(
        [sys.executable, "-c", EACH_FIRST, *sorted(modules)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, ""), f"{run.stdout}\n{run.stderr}"


def test_a_part_is_there_without_an_import_of_its_own() -> None:
    code = "import pollwise\nassert pollwise.events.PollFailed\nassert pollwise.queues.__doc__"
    assert parts(loaded(code)) >= {"events", "queues"}


@pytest.mark.parametrize("missing", ["starlette", "jinja2", "markupsafe", "python_multipart"])
def test_the_web_interface_names_its_extra_whatever_is_missing(missing: str) -> None:
    """So `pollwise serve` runs without its pages where only its own extra is installed."""
    loaded(
        f"sys.modules[{missing!r}] = None\n"
        "from pollwise.errors import MissingExtra\n"
        "try:\n    import pollwise.web\n"
        "except MissingExtra as error:\n    assert 'web' in str(error)\n"
        "else:\n    raise AssertionError('it was imported')\n"
    )


@pytest.mark.parametrize(
    ("statement", "packages", "extra"),
    [
        ("import pollwise.agent", ["httpx", "websockets"], "agent"),
        ("from pollwise import Agent", ["httpx", "websockets"], "agent"),
        ("from pollwise import Controller", ["fastapi", "uvicorn"], "serve"),
        ("import pollwise.queues.postgres", ["psycopg"], "postgres"),
        ("import pollwise.queues.redis", ["redis"], "redis"),
        ("import pollwise.queues.sqs", ["aiobotocore"], "sqs"),
        ("import pollwise.observe.prometheus", ["prometheus_client"], "metrics"),
        ("import pollwise.observe.otel", ["opentelemetry"], "otel"),
        ("import pollwise.contrib.django", ["django"], "django"),
    ],
)
def test_a_part_names_the_extra_of_its_own_page(
    statement: str, packages: list[str], extra: str
) -> None:
    loaded(
        f"sys.modules.update(dict.fromkeys({packages!r}))\n"
        "from pollwise.errors import MissingExtra\n"
        f"try:\n    {statement}\n"
        f"except MissingExtra as error:\n    assert \"'pollwise[{extra}]'\" in str(error), error\n"
        "else:\n    raise AssertionError('it was imported')\n"
    )


def test_all_of_it_at_once() -> None:
    names = ", ".join(pollwise.__all__)
    loaded(f"from pollwise import *\n{names}\nimport pollwise\nassert pollwise.Worker is Worker")
    loaded("import pollwise\nassert set(pollwise.__all__) <= set(dir(pollwise))")


def test_what_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(pollwise, "Wroker")
    with pytest.raises(AttributeError, match="module 'pollwise' has no attribute 'Wroker'") as told:
        pollwise.Wroker  # type: ignore[attr-defined]  # noqa: B018
    assert told.value.name == "Wroker"
    assert told.value.obj is pollwise
    with pytest.raises(AttributeError, match="no attribute 'HTTPJson'") as told:
        sources.HTTPJson  # type: ignore[attr-defined]  # noqa: B018
    assert told.value.obj is sources  # by which Python finds what was meant
    with pytest.raises(ImportError, match="cannot import name 'Wroker'"):
        from pollwise import Wroker  # type: ignore[attr-defined]  # noqa: F401


# Commands


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_line_of_the_help(name: str) -> None:
    root: Any = typer.main.get_command(app)
    command = root.commands[name]
    assert command.name == name
    assert not command.hidden
    assert not command.deprecated
    summary = " ".join(command.help.split("\n\n")[0].split())
    assert COMMANDS[name].summary == summary, "write the new one into pollwise/cli/app.py as well"
