"""fleet.toml: what it says, and everything that is wrong with it at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.fleet.actions import Put, Webhook
from pollwise.fleet.file import FleetFileError, read, read_text
from pollwise.fleet.probes import made
from pollwise.fleet.toml_lines import parsed, statements

GOOD = """
# The shop and what it needs.
[group.shop]
type = "http"
timeout = "10s"
interval = "1m"
headers = { Authorization = "Bearer ${SHOP_TOKEN}", Accept = "text/html" }
webhook = { url = "https://hooks.example/${SHOP_TOKEN}", secret = "k3y" }

[[target]]
name = "front page"
group = "shop"
url = "https://shop.example/"
labels = { team = "web" }

[[target]]
name = "api"
group = "shop"
url = "https://shop.example/api"
headers = { Accept = "application/json" }
min_interval = "5s"
max_interval = "1m"
json = "a.b[0]"
weight = 3
priority = 2
quiet = "22:00-06:00 Europe/Berlin"
put = "memory://"

[[target]]
name = "[[target]] # not a header"
type = "command"
run = [
  "sh", "-c",
  '''
[[target]]
name = "x"
''',  # a list over many lines
]
host = "here"
"""


def told(text: str, **environment: str) -> list[tuple[int, str]]:
    with pytest.raises(FleetFileError) as raised:
        read_text(text, environment=environment)
    return list(raised.value.problems)


def test_a_file_gives_its_targets_with_what_their_group_says() -> None:
    file = read_text(GOOD, environment={"SHOP_TOKEN": "t0ken"})
    front, api, command = file.targets
    assert (front.name, front.group, front.timeout) == ("front page", "shop", 10)
    assert front.interval == Fixed(60)
    assert front.labels == {"team": "web"}
    assert front.options["headers"]["Authorization"] == "Bearer t0ken"
    assert api.interval is None  # its own bounds replace the group's interval
    assert (api.min_interval, api.max_interval, api.weight, api.priority) == (5, 60, 3, 2)
    assert api.options["headers"] == {
        "Authorization": "Bearer t0ken", "Accept": "application/json"
    }  # fmt: skip
    assert str(api.quiet) == "22:00-06:00 Europe/Berlin"
    assert command.name == "[[target]] # not a header"
    assert command.host == "here"
    assert isinstance(front.actions[0], Webhook)
    assert front.actions[0] is api.actions[1]
    assert isinstance(api.actions[0], Put)
    for target in file.targets:
        assert made(target).probe is not None
    assert "t0ken" not in repr(file)


BAD = """[[target]]
name = "a"
type = "htpp"
min_interval = "1m"
max_interval = "5s"

[group.slow]
timeout = "never"
interval = "1h"

[[target]]
name = "a"
type = "http"
url = "app:hunter2@example.org"
jsno = "x"
group = "slow"

[[target]]
type = "tcp"
adress = "x:1"
weight = -1
priority = 1.5
labels = { a = 1 }
group = "slwo"

[[target]]
name = "fine"
type = "dns"
domain = "example.org"
group = "slow"
webhook = { url = "https://x", secrt = "hunter3" }
timeot = "5s"

[targets]
"""


def test_everything_that_is_wrong_is_told_at_once_with_its_line() -> None:
    found = told(BAD)
    by_line: dict[int, str] = {}
    for line, what in found:
        by_line[line] = f"{by_line.get(line, '')} {what}"
    expected = {
        3: "did you mean 'http'?",
        4: "min_interval",
        8: "group 'slow': timeout = 'never' is not a duration",
        12: "there is a target 'a' already, in line 1",
        14: "has no scheme",
        15: "jsno is no option; did you mean json?",
        18: "a target needs a name",
        20: "adress is no option; did you mean address?",
        21: "weight = -1",
        22: "priority = 1.5",
        23: "labels must be a table of texts",
        24: "did you mean 'slow'?",
        31: "has no secrt; did you mean secret?",
        32: "timeot is no option; did you mean timeout?",
        34: "targets is not known; write [[target]]",
    }
    for line, what in expected.items():
        assert what in by_line.get(line, ""), (line, what, by_line.get(line))
    assert len([each for each in found if "group 'slow'" in each[1]]) == 1
    whole = str(FleetFileError("fleet.toml", found))
    assert "hunter" not in whole
    assert whole.startswith(f"fleet.toml has {len(found)} errors:\n")
    assert "\n  fleet.toml:3: target 'a': there is no probe" in whole


def test_lines_that_are_no_toml_do_not_hide_the_others() -> None:
    text = """[[target]]
name = "a
type = "http"
url = "example.org"

[[target]
name = "lost"
type = "nothing is said about the rest of it"

[[target]]
name = "b"
type = "htpp"
retries == 3
tags = [
  "open",

[[target]]
name = "c"
name = "d"
type = "tcp"
address = "x"
"""
    found = dict(told(text))
    assert "is no TOML" in found[2]
    assert "has no scheme" in found[4]
    assert "is no TOML" in found[6]
    assert "did you mean 'http'?" in found[12]
    assert "is no TOML" in found[13]
    assert any("is no TOML" in found.get(line, "") for line in (14, 15, 16))
    assert "is no TOML" in found[19]
    assert "host:port" in found[21]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "there is no target"),
        ("# nothing\n", 1, "there is no target"),
        ('target = "x"', 1, "write [[target]]"),
        ("\n[target]\nname = 'a'", 2, "write [[target]]"),
        ("group = 1\n[[target]]\nname='a'\ntype='ping'\naddress='x'", 1, "write [group.name]"),
        ("[group]\nweb = 1", 1, "write [group.name] above it"),
        ("[group.web]\nname = 'x'\n[[target]]\nname='a'\ntype='ping'\naddress='x'", 2, "no name"),
        ("\n[[target]]\nname = 'a'", 2, "a target needs a type"),
        ("[[target]]\nname = 'a'\ntype = 7", 3, "there is no probe of type 7"),
        ("[[target]]\nname = 'a'\ntype='ping'\naddress='x'\nhost = 1", 5, "host = 1"),
        ("[[target]]\nname = ''\ntype='ping'\naddress='x'", 2, "name"),
        ("[[target]]\nname = 'a'\ntype='ping'\naddress='${NOWHERE}'", 4, "no NOWHERE"),
        ("[[target]]\nname='a'\ntype='ping'\naddress='x'\n[target.labels]\nb = 1", 5, "labels"),
        ("[[target]]\nname='a'\ntype='ping'\naddress='x'\nput = 'nonsense'", 5, "put"),
        ("[[target]]\nname='a'\ntype='ping'\naddress='x'\nwebhook = 'x.org'", 5, "https://"),
        ("[[target]]\nname='a'\ntype='ping'\naddress='x'\nwebhook = 5", 5, "needs url"),
        (
            "[[target]]\nname='a'\ntype='ping'\naddress='x'\ninterval='1s'\nmin_interval='1s'",
            5,
            "contra",
        ),
        ("target = [\n {name='a', type='ping', address='x'},\n {name='b'}]", 1, "needs a type"),
        ("[[target]]\r\nname='a'\r\ntype='pign'\r\naddress='x'", 3, "did you mean 'ping'"),
        ("[[target]]\nname='a'\ntype='function'\ncall='no.such:x'", 4, "ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_is_told_where_it_is(text: str, line: int, said: str) -> None:
    found = told(text)
    assert any(at == line and said in what for at, what in found), found


def test_variables_and_what_looks_like_one() -> None:
    text = """[[target]]
name = "a"
type = "http"
url = "https://x.org/${A}$${A}"
labels = { a = "${2}" }
"""
    (target,) = read_text(text, environment={"A": "b"}).targets
    assert target.options["url"] == "https://x.org/b${A}"
    assert target.labels["a"] == "${2}"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "fleet.toml")
    path = tmp_path / "fleet.toml"
    path.write_bytes(b"[[target]]\nname = '\xff'\n")
    with pytest.raises(FleetFileError, match=r"fleet\.toml:2: is not written in UTF-8"):
        read(path)
    path.write_text("\ufeff" + GOOD, "utf-8")
    assert len(read(path, {"SHOP_TOKEN": "x"}).targets) == 3


def test_ten_thousand_errors_are_counted_and_not_all_printed() -> None:
    text = "".join(f"[[target]]\nname = 't{n}'\ntype = 'pign'\n" for n in range(1000))
    with pytest.raises(FleetFileError, match="and 900 more") as raised:
        read_text(text)
    assert len(raised.value.problems) == 1000
    assert raised.value.problems[-1][0] == 3000


PIECES = st.sampled_from(
    [
        *("[[target]]\n", "[group.web]\n", "[target.labels]\n", 'name = "a"\n', "type = 'http'\n"),
        *('url = "http://x/"\n', "x = [1,\n2]\n", '"""', "'''", '"', "'", "[", "]", "{", "}", "#"),
        *("=", "\n", "\\", "a.b = 1\n", "${A}", "\ufeff", "\x00", "group = 'web'\n", "\r\n", "é"),
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_no_text_is_too_strange(text: str) -> None:
    problems: tuple[tuple[int, str], ...] = ()
    try:
        assert read_text(text, environment={}).targets
    except FleetFileError as error:
        problems = error.problems
    last = text.replace("\r\n", "\n").count("\n") + 1
    assert all(1 <= line <= last for line, _ in problems), problems


@given(st.lists(PIECES, max_size=30).map("".join))
def test_statements_cover_the_text_in_order(text: str) -> None:
    text = text.replace("\r\n", "\n")
    at = 0
    for each in statements(text):
        assert at <= each.begin < each.end <= len(text)
        assert text[: each.begin].count("\n") + 1 == each.line
        at = each.end
    document, problems, _ = parsed(text)
    assert document or problems or not any(not each.header for each in statements(text))
