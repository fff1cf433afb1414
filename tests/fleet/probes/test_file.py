"""fleet.toml: what it says, and everything that is wrong with it at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.fleet.file import FleetFileError, read, read_text
from pollwise.fleet.probes import make_probe

GOOD = """
# The shop and what it needs.
[group.shop]
type = "http"
timeout = "10s"
interval = "1m"
headers = { Authorization = "Bearer ${SHOP_TOKEN}", Accept = "text/html" }

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


def errors_of(text: str, **environment: str) -> list[tuple[int | None, str]]:
    with pytest.raises(FleetFileError) as raised:
        read_text(text, environment=environment)
    return list(raised.value.problems)


def test_targets_inherit_from_their_group() -> None:
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
    for target in file.targets:
        assert callable(make_probe(target))
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


def test_all_errors_are_reported_at_once_with_target_and_key() -> None:
    found = errors_of(BAD)
    expected = {
        (1, "target 'a': type = 'htpp' is not a probe type; did you mean http?"),
        (1, "target 'a': min_interval"),
        (7, "group 'slow': timeout = 'never' is not a duration"),
        (11, "target 'a' already exists"),
        (11, "target 'a': url = "),
        (11, "target 'a': jsno is not an option; did you mean json?"),
        (18, "a target: name is missing"),
        (18, "a target: adress is not an option; did you mean address?"),
        (18, "a target: weight = -1"),
        (18, "a target: priority = 1.5"),
        (18, "a target: labels must be a table of texts"),
        (18, "a target: group = 'slwo' does not exist; did you mean 'slow'?"),
        (26, "target 'fine': webhook is a channel now: write [channel.hook] with type"),
        (26, "target 'fine': timeot is not an option; did you mean timeout?"),
        (None, "targets is not known; write [[target]]"),
    }
    for line, what in expected:
        assert any(at == line and what in each for at, each in found), (line, what, found)
    assert any("has no scheme" in each for _, each in found)
    assert len([each for each in found if "group 'slow'" in each[1]]) == 1
    whole = str(FleetFileError("fleet.toml", found))
    assert "hunter" not in whole
    assert whole.startswith(f"fleet.toml has {len(found)} errors:\n")
    assert "\n  fleet.toml:1: target 'a': type = 'htpp' is not a probe type" in whole
    assert "\n  fleet.toml: targets is not known" in whole


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[[target]]\nname = "a\ntype = "http"\n', 2),
        ('[[target]]\nname = "a"\n\n[[target]\nname = "lost"\n', 4),
        ("[[target]]\nretries == 3\n", 2),
        ('[[target]]\nname = "c"\nname = "d"\n', 3),
        ('[[target]]\ntags = [\n  "open",\n', 4),
    ],
)
def test_a_syntax_error_is_reported_with_its_line(text: str, line: int) -> None:
    ((at, what),) = errors_of(text)
    assert at == line
    assert "is not valid TOML" in what


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", None, "there is no target"),
        ("# nothing\n", None, "there is no target"),
        ('target = "x"', None, "write [[target]]"),
        ("\n[target]\nname = 'a'", None, "write [[target]]"),
        ("group = 1\n[[target]]\nname='a'\ntype='ping'\naddress='x'", None, "write [group.name]"),
        ("[group]\nweb = 1", None, "write [group.name] above it"),
        (
            "[group.web]\nname = 'x'\n[[target]]\nname='a'\ntype='ping'\naddress='x'",
            1,
            "group 'web': name is only for targets",
        ),
        ("\n[[target]]\nname = 'a'", 2, "target 'a': type is missing"),
        ("[[target]]\nname = 'a'\ntype = 7", 1, "target 'a': type = 7 is not a probe type"),
        ("[[target]]\nname = 'a'\ntype='ping'\naddress='x'\nhost = 1", 1, "host = 1"),
        ("[[target]]\nname = ''\ntype='ping'\naddress='x'", 1, "name"),
        (
            "[[target]]\nname = 'a'\ntype='ping'\naddress='${NOWHERE}'",
            1,
            "target 'a': address: the environment variable NOWHERE is not set",
        ),
        ("[[target]]\nname='a'\ntype='ping'\naddress='x'\n[target.labels]\nb = 1", 1, "labels"),
        ("[[target]]\nname='a'\ntype='ping'\naddress='x'\nput = 'x'", 1, 'to = ["jobs"]'),
        ("[[target]]\nname='a'\ntype='ping'\naddress='x'\nwebhook = 5", 1, 'to = ["hook"]'),
        (
            "[[target]]\nname='a'\ntype='ping'\naddress='x'\ninterval='1s'\nmin_interval='1s'",
            1,
            "contra",
        ),
        (
            "target = [\n {name='a', type='ping', address='x'},\n {name='b'}]",
            None,
            "target 'b': type is missing",
        ),
        ("[[target]]\r\nname='a'\r\ntype='pign'\r\naddress='x'", 1, "did you mean ping"),
        (
            "[[target]]\nname='a'\ntype='function'\ncall='no.such:x'",
            1,
            "target 'a': call = 'no.such:x'",
        ),
    ],
)
def test_an_error_names_its_place(text: str, line: int | None, said: str) -> None:
    found = errors_of(text)
    assert any(at == line and said in what for at, what in found), found


def test_no_line_is_given_where_a_text_looks_like_a_header() -> None:
    text = "[[target]]\nname = 'a'\ntype = 'pign'\nx = '''\n[[target]]\n'''\n"
    assert {line for line, _ in errors_of(text)} == {None}


def test_variables_and_texts_that_look_like_one() -> None:
    text = """[[target]]
name = "a"
type = "http"
url = "https://x.org/${A}$${A}"
labels = { a = "${2}" }
"""
    (target,) = read_text(text, environment={"A": "b"}).targets
    assert target.options["url"] == "https://x.org/b${A}"
    assert target.labels["a"] == "${2}"


SECRETS = """
[group.db]
type = "sql"
url = "${DB_URL}"
query = "SELECT 1"
quiet = "22:00-06:00"

[[target]]
name = "rows"
group = "db"

[[target]]
name = "page"
type = "http"
url = "${PAGE}"
headers = { Authorization = "${HOOK}" }
"""


def test_views_need_no_secrets() -> None:
    """What only probes use may be unset; what views use may not."""
    rows, page = read_text(SECRETS, environment={}, for_views=True).targets
    assert (rows.name, rows.type, rows.group, str(rows.quiet)) == (
        "rows", "sql", "db", "22:00-06:00 UTC"
    )  # fmt: skip
    assert (page.name, page.type) == ("page", "http")
    with pytest.raises(FleetFileError) as failed:
        read_text(SECRETS, environment={})
    said = str(failed.value)
    assert all(f"variable {name} is not set" in said for name in ("DB_URL", "PAGE", "HOOK"))
    wrong = SECRETS.replace('name = "page"', 'name = "${PAGE}"\nprot = 3\ntimeout = "x"')
    with pytest.raises(FleetFileError) as failed:
        read_text(wrong, environment={}, for_views=True)
    said = str(failed.value)
    assert "name: the environment variable PAGE is not set" in said
    assert "prot is not an option" in said
    assert "timeout = 'x'" in said
    assert "url: the environment" not in said
    assert "HOOK" not in said


def test_errors_of_a_group_that_no_target_uses_are_told() -> None:
    unused = """
[group.later]
type = "http"
timeout = "soon"
metod = "GET"
webhook = { secret = "x" }
[group.typo]
type = "htp"
[group.fine]
timeout = "5s"
anything = "its targets have a type"
[[target]]
name = "a"
type = "tcp"
address = "127.0.0.1:1"
"""
    found = errors_of(unused)
    assert [line for line, _ in found] == [2, 2, 2, 7]
    said = " ".join(what for _, what in found)
    for each in (
        "timeout = 'soon'",
        "did you mean method?",
        "webhook is a channel now",
        "type = 'htp'",
    ):
        assert each in said
    assert said.count("group 'later'") == 3
    assert "missing" not in said  # its targets may have a url


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "fleet.toml")
    path = tmp_path / "fleet.toml"
    path.write_bytes(b"[[target]]\nname = '\xff'\n")
    with pytest.raises(FleetFileError, match=r"fleet\.toml:2: is not encoded in UTF-8"):
        read(path)
    path.write_text("\ufeff" + GOOD, "utf-8")
    assert len(read(path, {"SHOP_TOKEN": "x"}).targets) == 3


def test_ten_thousand_errors_are_counted_and_not_all_printed() -> None:
    text = "".join(f"[[target]]\nname = 't{n}'\ntype = 'pign'\n" for n in range(1000))
    with pytest.raises(FleetFileError, match="and 900 more") as raised:
        read_text(text)
    assert len(raised.value.problems) == 1000
    assert raised.value.problems[-1][0] == 2998


PIECES = st.sampled_from(
    [
        *("[[target]]\n", "[group.web]\n", "[target.labels]\n", 'name = "a"\n', "type = 'http'\n"),
        *('url = "http://x/"\n', "x = [1,\n2]\n", '"""', "'''", '"', "'", "[", "]", "{", "}", "#"),
        *("=", "\n", "\\", "a.b = 1\n", "${A}", "\ufeff", "\x00", "group = 'web'\n", "\r\n", "é"),
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_no_text_crashes_the_reader(text: str) -> None:
    problems: tuple[tuple[int | None, str], ...] = ()
    try:
        assert read_text(text, environment={}).targets
    except FleetFileError as error:
        problems = error.problems
    last = text.replace("\r\n", "\n").count("\n") + 1
    assert all(line is None or 1 <= line <= last for line, _ in problems), problems
