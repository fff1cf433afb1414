"""No secret is shown: not of a query, not from the environment, not in an error."""

from __future__ import annotations

import pytest

import pollwise
from pollwise.errors import ConfigError
from pollwise.fleet import Target
from pollwise.fleet.engine.failures import text_of
from pollwise.fleet.file import FleetFileError, read_text
from pollwise.fleet.probes.http.fetch import Fetch
from pollwise.fleet.probes.options import ProbeOptions
from pollwise.fleet.stores.urls import open_store
from pollwise.runtime.redact import hide, shown_url, without_query_values


@pytest.mark.parametrize(
    "name", ["key", "Key", "code", "subscription-key", "auth", "jwt", "session", "sid", "hash"]
)
def test_no_value_of_a_query_is_shown(name: str) -> None:
    url = f"https://api.example/v1/x?{name}=hunter2&a=b;appid=hunter2#part"
    options = ProbeOptions(Target("t", "http", options={"url": url}))
    assert Fetch(options).shown == f"https://api.example/v1/x?{name}=***&a=***;appid=***#part"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/x?hunter2", "https://h/x?***"),
        ("https://h/x?a=b=hunter2", "https://h/x?a=***"),
        ("https://h/x?a=", "https://h/x?***"),
        ("https://u:hunter2@h/x?a=hunter2", "https://u:***@h/x?a=***"),
        ("postgres//u:hunter2@h/d", "***@h/d"),
        ("u:hunter2@h:x", "***@h:x"),
        ("example.org/path", "example.org/path"),
    ],
)
def test_the_shown_part_of_a_url(url: str, shown: str) -> None:
    assert without_query_values(url) == shown


def test_values_from_the_environment_are_never_shown() -> None:
    text = """
[[target]]
name = "hook"
type = "http"
url = "https://hooks.example/services/${HOOK_PATH}/x"
"""
    [target] = read_text(text, environment={"HOOK_PATH": "T0/hunter2hunter2"}).targets
    assert target.options["url"] == "https://hooks.example/services/T0/hunter2hunter2/x"
    assert Fetch(ProbeOptions(target)).shown == "https://hooks.example/services/***/x"
    assert text_of(OSError("no T0/hunter2hunter2 here")) == "OSError: no *** here"


def test_a_short_value_hides_no_half_of_a_word() -> None:
    hide("ab")
    assert shown_url("https://abc.example/") == "https://abc.example/"


@pytest.mark.parametrize(
    "lines",
    [
        "type = 'sql'\nquery = 'SELECT 1'\nurl = 'postgres//u:hunter2@h/d'",
        "type = 'sql'\nquery = 'SELECT 1'\nurl = ['postgresql://u:hunter2@h/d']",
        "type = 'sql'\nquery = 'SELECT 1'\nurl = {a = 'postgresql://u:hunter2@h/d'}",
        "type = 'http'\nurl = 'http//u:hunter2@h/d'",
        "type = 'http'\nurl = ['https://u:hunter2@h/d']",
        "type = 'tcp'\naddress = 'u:hunter2@h:x'",
        "type = 'tcp'\naddress = ['u:hunter2@h:1']",
        "type = 'dns'\nquestion = ['u:hunter2@h:1']",
        "type = 'tcp'\naddress = 'hunter2@h:1'",
        "type = 'ping'\naddress = 'u:hunter2@h'",
        "type = 'ping'\naddress = 'hunter2@h'",
        "type = 'ping'\naddress = 'http//hunter2@h/'",
        "type = 'dns'\ndomain = 'hunter2@example.org'",
        "type = 'dns'\ndomain = 'http//u:hunter2@h'",
        "type = 'dns'\ndomain = 'example.org'\nserver = 'hunter2@9.9.9.9'",
        "type = 'http'\nurl = 'http://h/'\nput = 'hunter2@h'",
        "type = 'http'\nurl = 'http://h/'\nput = 'redis//u:hunter2@h/0'",
        "type = 'http'\nurl = 'http://h/'\nput = {queue = 'hunter2@h', kind = 'changed'}",
        "type = 'http'\nurl = 'http://h/'\nwebhook = 'u:hunter2@h'",
    ],
)
def test_an_error_shows_no_password(lines: str) -> None:
    with pytest.raises(FleetFileError) as caught:
        read_text(f"[[target]]\nname = 'x'\n{lines}\n")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "lines",
    [
        "type = 'dns'\ndomain = '0/25.2.0.192.in-addr.arpa'",  # by RFC 2317 a name
        "type = 'tcp'\naddress = '[::1]:5432'",
        "type = 'ping'\naddress = '2001:db8::1'",
    ],
)
def test_a_url_without_an_at_is_unchanged(lines: str) -> None:
    assert len(read_text(f"[[target]]\nname = 'x'\n{lines}\n").targets) == 1


@pytest.mark.parametrize("url", ["u:hunter2@h", "hunter2@h", "redis//u:hunter2@h/0"])
def test_an_invalid_queue_url_shows_nothing_before_an_at(url: str) -> None:
    with pytest.raises(ConfigError, match=r"'\*\*\*@h.*' is not a queue URL") as caught:
        pollwise.open(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http//u:hunter2@h/", ["sqlite:///u:hunter2@h"], "ftp://u:hunter2@h"]
)
def test_an_invalid_store_url_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)
