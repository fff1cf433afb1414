"""Redaction: what rules hide, at any depth, and what they leave."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from pollwise.errors import ConfigError
from pollwise.web.redaction import LEVELS_MAX, Redacted, RedactionRules, redacted, redacted_text

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "value",
    [
        {"password": SECRET},
        {"a": [{"b": {"userPassword": SECRET}}]},
        {"API-Key": SECRET},
        {"accessToken": {"nested": [SECRET]}},
        {"Authorization": SECRET},
        {"variables": [{"name": "DB_PASSWORD", "value": SECRET}]},
        {"text": json.dumps({"token": SECRET})},
        {"text": f"Bearer {SECRET}"},
        {"dsn": f"postgresql://app:{SECRET}@db/shop"},
        {"next": f"https://a.example/?to=https%3A%2F%2Fu:{SECRET}%40b.example"},
        {"link": f"see https://a.example/x?sig={SECRET}&page=1"},
        [f"https://{SECRET}@controller.example"],
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}",
        {"pin": {"token": [{"x": SECRET}]}},
        {f"postgresql://app:{SECRET}@db/shop": 1},
        {"tags": [{"Key": "DB_PASSWORD", "Value": SECRET}]},
        {"name": "first", "key": "token", "value": SECRET},
        {"headers": [["Authorization", SECRET], ("Cookie", [SECRET])]},
        {"db.password": SECRET},
        {"pass\u200bword": SECRET},
        {"ｐａｓｓｗｏｒｄ": SECRET},
        f' \ufeff{{"password": "{SECRET}"}}',
        f'{{"password": "{SECRET}", "password": true}}',
        f'{{"a": 1}}\n{{"password": "{SECRET}"}}',
        json.dumps(json.dumps({"a": {"token": SECRET}})),
        f"no login with {{'a': {{'password': '{SECRET}'}}}}",
        f'said {{\\"token\\": \\"{SECRET}\\"}}',
        f"host=db password={SECRET} user=app",
        f"Login(user='ada', api_key=b'{SECRET}')",
    ],
)
def test_secrets_are_hidden(value: Any) -> None:
    shown = redacted(value)
    assert SECRET not in json.dumps(shown)
    assert SECRET not in repr(shown)
    assert SECRET in json.dumps(value), "the value itself stays"


def test_the_rest_is_left() -> None:
    value = {
        "max_tokens": 100,
        "password": None,
        "token": "",
        "has_secret": True,
        "url": "https://a.example/x?page=1#top",
        "mail": "ada: ada@example.org",
        "json": '{"a": [1, 2]}',
        "list": [1, 2.5, None, "x"],
        "pairs": [["user", "ada"], ["token", None]],
        "code": "connect(password=password) if token == given else f'{token=}'",
        "quoted": '"a quoted text"',
    }
    assert redacted(value) == value


def test_own_rules_replace_the_usual_ones() -> None:
    rules = RedactionRules(["card.number", "*.Pin", "x-*-key"])
    value = {
        "card": {"number": "4111", "name": "Ada"},
        "number": 7,
        "pin": 1234,
        "X_Some_Key": "k",
        "password": "shown",
    }
    shown = redacted(value, rules)
    assert shown == {
        "card": {"number": "hidden", "name": "Ada"},
        "number": 7,
        "pin": "hidden",
        "X_Some_Key": "hidden",
        "password": "shown",
    }
    assert isinstance(shown["pin"], Redacted)
    assert shown["card"]["number"].rule == "card.number"
    assert redacted({"a": "x"}, RedactionRules(["headers.a"]), "headers") == {"a": "hidden"}


@pytest.mark.parametrize("rules", [[""], ["a..b"], ["x" * 200], [3], ["a"] * 1000])
def test_wrong_rules_are_refused(rules: list[Any]) -> None:
    with pytest.raises(ConfigError, match="redact has"):
        RedactionRules(rules)


def test_deep_and_long_values_take_linear_time() -> None:
    deep: Any = SECRET
    for _ in range(LEVELS_MAX + 50):
        deep = [deep]
    assert SECRET not in json.dumps(redacted(deep))
    began = time.process_time()
    for hostile in ("eyJ-" * 50_000, "x://" * 50_000, "x://" + "a=" * 100_000, "basic " * 40_000,
                    "a://b?" + "-token" * 30_000, "-----BEGIN " * 20_000, "[" * 100_000 + "]",
                    "a://b?c=" + "://" * 60_000):  # fmt: skip
        redacted_text(hostile)
        redacted([hostile])
    assert time.process_time() - began < 5


@pytest.mark.parametrize("rules", ['["password"]', "password", {"password": 1}, b"password"])
def test_rules_that_are_no_list_are_refused(rules: Any) -> None:
    with pytest.raises(ConfigError, match="must be a list of rules"):
        RedactionRules(rules)


@pytest.mark.parametrize("rule", ['["password"', '"password"', "'token'", "['password'"])
def test_rules_in_quotes_are_refused_because_they_hide_nothing(rule: str) -> None:
    with pytest.raises(ConfigError, match="would hide nothing"):
        RedactionRules([rule])


@pytest.mark.parametrize("password", ["hunt?er2", "?hunter2", "hunt?a=er2", "1?er2", "a?e@r2?er2"])
def test_a_password_may_contain_a_question_mark(password: str) -> None:
    for url in (f"postgresql://app:{password}@db/x", f"redis://:{password}@cache/0?queue=a"):
        shown = redacted_text(f"cannot reach {url} now")
        assert "er2" not in shown
        assert shown.endswith(" now")
    assert redacted_text("see https://a.example/b?mail=c@d.example") == (
        "see https://a.example/b?mail=c@d.example"
    )
