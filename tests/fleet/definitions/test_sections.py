"""Channels, rules, routes and dependencies in fleet.toml."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.alerts.channels.function import FunctionChannel
from pollwise.alerts.channels.webhook import WebhookChannel
from pollwise.alerts.rules import AlertRule
from pollwise.fleet.definitions.document import Document
from pollwise.fleet.definitions.sections import CHANNELS_MAX
from pollwise.fleet.file import FleetFile, FleetFileError, _FileReader, read_text

CHANNELS = """
[channel.ops]
type = "webhook"
url = "${OPS_URL}"

[channel.lamp]
type = "function"
call = "builtins:print"
quiet = "20:00-08:00"
"""
TARGET = '\n[[target]]\nname = "{}"\ntype = "http"\nurl = "http://x/"\n'
SECRET = "https://hooks.example/T0KEN/s3cret-path"


def read(text: str, **more: Any) -> FleetFile:
    return read_text(text, environment={"OPS_URL": SECRET}, **more)


def problems(text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(FleetFileError) as refused:
        read(text)
    assert "s3cret" not in str(refused.value)
    return list(refused.value.problems)


def test_a_file_has_channels_routes_and_a_link() -> None:
    routes = '[alerts]\nto = ["ops"]\nquiet = "22:00-06:00"\nlink = "https://status/{target}"\n'
    found = read(f"{CHANNELS}{routes}{TARGET.format('a')}")
    ops, lamp = found.alerts.channels.values()
    assert isinstance(ops, WebhookChannel)
    assert isinstance(lamp, FunctionChannel)
    assert (str(ops.quiet), str(lamp.quiet)) == ("22:00-06:00 UTC", "20:00-08:00 UTC")
    assert found.alerts.to == ("ops",)
    assert found.alerts.link is not None
    assert found.alerts.link({"target": "a"}) == "https://status/a"
    assert "s3cret" not in f"{found!r} {ops!r}"


@pytest.mark.parametrize("kind", ["apprise", "webhook"])
def test_a_variable_that_is_not_set_is_the_only_error_of_its_key(kind: str) -> None:
    text = f'[channel.ops]\ntype = "{kind}"\nurl = "${{NOT_SET}}"\ntimeout = "soon"\n'
    timeout, url = sorted(what for _, what in problems(f"{text}{TARGET.format('a')}"))
    assert "channel 'ops': url: the environment variable NOT_SET is not set" in url
    assert "soon" in timeout


def test_variables_that_are_not_set_are_the_only_errors_of_secrets_groups_and_targets() -> None:
    hook = '[channel.ops]\ntype = "webhook"\nurl = "http://a/"\nsecret = "${NO_KEY}"\n'
    group = '[group.g]\ntype = "tcp"\ntimeout = "${NO_TIME}"\n'
    target = '[[target]]\nname = "a"\ngroup = "g"\naddress = "${NO_PLACE}"\n'
    advice = "set it, or write $${ for ${"
    assert [what for _, what in problems(f"{hook}{group}{target}")] == [
        f"channel 'ops': secret: the environment variable NO_KEY is not set; {advice}",
        f"group 'g': timeout: the environment variable NO_TIME is not set; {advice}",
        f"target 'a': address: the environment variable NO_PLACE is not set; {advice}",
    ]


def test_rules_come_from_the_group_unless_the_target_has_its_own() -> None:
    group = '[group.g]\nalerts = ["down", { when = "latency > 2s", for = "5m", to = "lamp" }]\n'
    own = 'alerts = { when = "days_left < 14d", repeat = "1d", severity = "critical" }\n'
    text = f'{CHANNELS}{group}to = ["ops"]\n{TARGET.format("a")}group = "g"\n'
    text += f'{TARGET.format("b")}group = "g"\n{own}{TARGET.format("c")}group = "g"\nalerts = []\n'
    text += f'{TARGET.format("d")}group = "g"\nto = "lamp"\n{TARGET.format("e")}'
    a, b, c, d, e = read(text).targets
    assert a.alerts == (
        AlertRule("down", to=["ops"]),
        AlertRule("latency > 2s", lasting="5m", to=["lamp"]),
    )
    assert b.alerts == (AlertRule("days_left < 14d", repeat="1d", severity="critical", to=["ops"]),)
    assert [each.to for each in d.alerts] == [("lamp",), ("lamp",)]
    assert (c.alerts, e.alerts) == ((), ())


def test_a_target_is_behind_others() -> None:
    text = TARGET.format("router") + TARGET.format("a") + 'behind = "router"\n'
    assert [each.behind for each in read(text).targets] == [(), ("router",)]
    round = TARGET.format("a") + 'behind = "b"\n' + TARGET.format("b") + 'behind = ["a"]\n'
    assert "in a circle: 'a' → 'b' → 'a'" in str(problems(round))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('alerts = ["dwon"]', "'dwon'"),
        ("alerts = 3", "alerts = 3 must be a list"),
        ("alerts = [3]", "3 must be a condition"),
        ("alerts = [{}]", "when is missing"),
        ('alerts = [{ when = "down", fro = "5m" }]', "did you mean 'for'"),
        ('alerts = [{ when = "down", for = "soon" }]', "for = 'soon'"),
        ('alerts = [{ when = "down", quiet = "late" }]', "quiet = 'late' must have the form"),
        ('alerts = [{ when = "down", quiet = 3 }]', "quiet = 3 must be text"),
        ('alerts = [{ when = "down", severity = "high" }]', "severity = 'high'"),
        ('alerts = [{ when = "down", to = ["opps"] }]', "no channel 'opps'; did you mean 'ops'"),
        ('alerts = [{ when = "down", to = 3 }]', "to = 3 must be a list"),
        ('alerts = ["days_lft < 14d"]', "days_left"),
        ('alerts = ["down", "down"]', "two rules on 'down'"),
        ('alerts = ["down"]\nto = "opps"', "no channel 'opps'"),
        ('to = "ops"', "to has no effect without alerts"),
        ("behind = 3", "behind = 3"),
        ('behind = "rooter"', "rooter"),
        ('behind = "a"', "the target itself"),
        ('webhook = "https://x/s3cret"', '[channel.hook] with type = "webhook"'),
        ('put = "sqlite:///x.db"', '[channel.jobs] with type = "put"'),
    ],
)
def test_what_is_wrong_with_a_rule_is_told_with_its_line(line: str, error: str) -> None:
    text = f"{CHANNELS}{TARGET.format('a')}{line}\n"
    ((at, said),) = problems(text)
    assert at == text.splitlines().index("[[target]]") + 1
    assert error in said
    # Of a group that targets use, it is told once, for the group.
    users = "".join(f'{TARGET.format(name)}group = "g"\n' for name in "xy")
    if not line.startswith("behind"):
        text = f"{CHANNELS}[group.g]\n{line}\n{users}"
        ((at, said),) = problems(text)
        assert (at, said.partition(":")[0]) == (
            text.splitlines().index("[group.g]") + 1,
            "group 'g'",
        )


def test_all_errors_of_channels_and_routes_are_told_at_once() -> None:
    text = """
[channel.ops]
type = "webhok"

[channel.mail]
type = "apprise"
url = "${MISSING}"

[channel.hook]
type = "webhook"
url = "https://x/s3cret"
text = "{tarjet}"
timeout = "soon"

[alerts]
to = ["opps"]
quiet = "at night"
link = "{x}"
lnk = 1

[[target]]
name = "a"
type = "http"
url = "http://x/"
alerts = [{ when = "down", to = "mial" }]
"""
    found = problems(text)
    said = "\n".join(f"{line} {what}" for line, what in found)
    for each in (
        "2 channel 'ops': type = 'webhok' is not a type of channel; did you mean 'webhook'",
        "5 channel 'mail': url: the environment variable MISSING is not set",
        "9 channel 'hook': text = '{tarjet}': there is no field {tarjet}; did you mean 'target'",
        "9 channel 'hook': timeout = 'soon'",
        "15 alerts: to: there is no channel 'opps'; did you mean 'ops'",
        "15 alerts: quiet = 'at night' must have the form",
        "15 alerts: link = '{x}': there is no field {x}",
        "15 alerts: lnk is not known; did you mean 'link'",
        "no channel 'mial'; did you mean 'mail'",
    ):
        assert each in said
    assert "quiet" not in "".join(what for line, what in found if line == 9)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("channel = 3\n", "channel is not a table; write [channel.name]"),
        ("alerts = 3\n", "alerts is not a table; write [alerts]"),
        ('[channel]\ntype = "put"\n', "type is not in a channel"),
        ("[chanel.x]\n", "chanel is not known; write [channel.name]"),
        ("[alert]\n", "alert is not known; write [alerts]"),
        ("[fleet]\n", "settings of the fleet do not belong here; write [fleet] in pollwise.toml"),
    ],
)
def test_a_section_of_another_form_is_refused(text: str, error: str) -> None:
    assert error in str(problems(text + TARGET.format("a")))


def test_the_number_of_channels_is_limited() -> None:
    many = "".join(
        f'[channel.c{number}]\ntype = "function"\ncall = "builtins:print"\n'
        for number in range(CHANNELS_MAX + 1)
    )
    assert "51 channels are more than the 50 allowed" in str(problems(many + TARGET.format("a")))


def test_views_need_no_secrets_and_make_no_channels() -> None:
    text = f'{CHANNELS}{TARGET.format("a")}alerts = ["down"]\nto = "ops"\n'
    found = read_text(text, environment={}, for_views=True)
    assert found.alerts.channels == {}
    assert found.targets[0].alerts[0].to == ("ops",)


# Whatever a file says, it is read or refused.

TEXTS = st.sampled_from(
    [
        *("", "down", "ops", "webhook", "function", "put", "apprise", "builtins:print", "5m", "x"),
        *("https://x/", "memory://", "{target}", "{", "22:00-06:00", "Sat 00:00-24:00", "critical"),
        *("2026-12-24 22:00 UTC", "value matches (", "latency > 2s", "days_left < 14d", "a", "g"),
    ]
)
KEYS = st.sampled_from(
    [
        *("type", "url", "queue", "call", "text", "title", "body", "timeout", "quiet", "to"),
        *("quiet_except", "secret", "headers", "ca", "verify", "link", "when", "for", "repeat"),
        *("confirmations", "severity", "alerts", "behind", "targets", "groups", "all", "every"),
        *("start", "end", "note", "keyed", "priority", "kind", "zz"),
    ]
)
FAR = datetime.max.replace(tzinfo=UTC)
VALUES = st.recursive(
    TEXTS | st.integers(-2, 10**30) | st.booleans() | st.floats() | st.just(FAR),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=4),
    max_leaves=6,
)
TABLES = st.dictionaries(KEYS, VALUES, max_size=6)


CHANNEL_TABLES = st.dictionaries(TEXTS, TABLES | VALUES, max_size=3) | VALUES


@settings(deadline=None)
@given(CHANNEL_TABLES, TABLES | VALUES, TABLES, VALUES)
def test_no_value_crashes_the_reader(channels: Any, routes: Any, own: Any, windows: Any) -> None:
    target = {"name": "a", "type": "http", "url": "http://x/", "group": "g"}
    document = {
        "channel": channels,
        "alerts": routes,
        "maintenance": windows if isinstance(windows, list) else [windows],
        "group": {"g": {key: own[key] for key in ("to", "alerts") if key in own}},
        "target": [target | {key: own[key] for key in ("alerts", "behind") if key in own}],
    }
    reader = _FileReader("", Document(document), {}, for_views=False)
    reader.alerts()
    reader.maintenance(reader.targets())
    assert all(isinstance(what, str) for _, what in reader.problems)


CHANNEL = '[channel.ops]\ntype = "webhook"\nurl = "https://h.example/"\n'


def target_with(alerts: str, head: str = CHANNEL) -> str:
    page = '[[target]]\nname = "a"\ntype = "http"\nurl = "https://a.example/"\ntimeout = "10s"\n'
    return f"{head}{page}alerts = {alerts}\n"


@pytest.mark.parametrize("when", ["latency > 2000", "latency >= 10s", "latency > 1h"])
def test_a_latency_that_no_poll_can_have_is_refused(when: str) -> None:
    with pytest.raises(
        FleetFileError, match=r"can never open: a poll ends at its timeout of 10s"
    ) as raised:
        read_text(target_with(f'["{when}"]'))
    assert ("did you mean 2000ms?" in str(raised.value)) == (when == "latency > 2000")
    assert read_text(target_with('["latency > 2000ms", "latency < 20s"]')).targets


def test_alerts_that_nobody_can_hear_are_refused() -> None:
    with pytest.raises(
        FleetFileError, match=r"'a': nobody hears of its alerts.*write \[channel.ops\]"
    ):
        read_text(target_with('["down"]', head=""))
    assert read_text(target_with("[]", head="")).targets
    assert read_text(target_with('["down"]')).targets  # it may be sent by the target's own to
