"""`pollwise agent`: what is wrong with its arguments is said at once, and secrets never."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollwise.cli.agent import _capability, _options
from pollwise.errors import ConfigError
from pollwise.settings import load
from tests.cli.console import pollwise
from tests.support.private import write_private


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Missing argument"),
        (["--", "true"], "no controller is named"),
        (["--controller", "localhost", "--", "true"], "not the address of a controller"),
        (["--controller", "http://:hunter2@x", "--", "true"], "credentials"),
        (["--controller", "http://x", "--", "./no-such-program"], "is not executable"),
        (["--controller", "http://x", "--", "true", "{paylod}"], "did you mean {payload}?"),
        (["--controller", "http://x", "--capability", "ios", "--", "true"], "a name and a value"),
        (["--controller", "http://x", "--slots", "0", "--", "true"], "slots"),
        (["--controller", "http://x", "--timeout", "soon", "--", "true"], "timeout"),
        (["--controller", "http://x", "--set", "agent.x", "--", "true"], "has no value"),
        (["--controller", "http://x", "--set", "agent.slot=1", "--", "true"], "agent.slots"),
        (["--controller", "http://x", "--token-file", "gone", "--", "true"], "cannot be read"),
        (["--controller", "http://x", "--", "true"], "POLLWISE_TOKEN_FILE"),
    ],
)
def test_bad_input(words: list[str], says: str, tmp_path: Path) -> None:
    folder = ["--folder", str(tmp_path / "work")] if words else []
    result = pollwise("agent", *folder, *words)
    assert result.code == 2
    assert says in " ".join(result.err.split())
    assert "hunter2" not in result.err


@pytest.mark.parametrize("name", ["POLLWISE_TOKEN", "POLLWISE_TOKEN_FILE"])
def test_the_token_may_be_in_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(tmp_path / "token", "hunter2 and more")
    file = str(tmp_path / "token")
    monkeypatch.setenv(name, file if name.endswith("FILE") else "hunter2 and more")
    words = ["--controller", "http://127.0.0.1:9", "--folder", str(tmp_path / "work")]
    result = pollwise("agent", *words, "--", "true")
    assert result.code == 2
    where = "the token file" if name.endswith("FILE") else name
    said = " ".join(result.err.split())
    assert where in said, "it was read, and found to hold none"
    assert "does not hold a token" in said
    assert "hunter2" not in result.err


def test_a_controller_that_refuses_the_token(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file where a folder should be")
    token = tmp_path / "token"
    write_private(token, "hunter2")
    words = ["--controller", "http://127.0.0.1:9", "--token-file", str(token)]
    result = pollwise("agent", *words, "--folder", str(tmp_path / "folder"), "--", "true")
    assert result.code == 2
    assert "cannot be used" in result.err


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("platform=ios", "platform", "ios"),
        ("memory_gb=16", "memory_gb", 16),
        ("load=0.5", "load", 0.5),
        ("gpu=True", "gpu", True),
        ("lang=swift, c,7", "lang", ["swift", "c", 7]),
        ("x=nan", "x", "nan"),
        ("x=a=b", "x", "a=b"),
    ],
)
def test_capabilities(text: str, name: str, value: object) -> None:
    assert _capability(text) == (name, value)


@pytest.mark.parametrize("text", ["", "=x", "x=", "x"])
def test_capabilities_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        _capability(text)


def test_settings_reach_the_agent() -> None:
    environ = {
        "POLLWISE_AGENT_POLL_INTERVAL": "10",
        "POLLWISE_AGENT_CONTROLLER": "http://x",
        "POLLWISE_AGENT_SLOTS": "3",
        "POLLWISE_AGENT_PUSH": "false",
        "POLLWISE_AGENT_ENV": "JAVA_HOME, AWS_*",
    }
    settings = load(environ=environ).agent
    options = _options(settings, ["true"], ["a=1"], ["build"], ["*.zip"])
    assert (options.poll_interval, options.max_interval, options.slots) == (10, 120, 3)
    assert options.push is False
    assert options.env == ("JAVA_HOME", "AWS_*")
    assert options.capabilities == {"a": 1, "kinds": ["build"]}
    assert options.artefacts == ("*.zip",)
