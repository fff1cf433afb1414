"""Passwords in settings: kept, never shown."""

from __future__ import annotations

import pytest

from pollwise.errors import ConfigError
from pollwise.runtime.redact import without_secrets
from tests.settings.folder import Folder, row

# Secrets.

WITH_PASSWORD = "postgresql://app:hunter2@db:5432/jobs?queue=mail"
WITHOUT = "postgresql://app:***@db:5432/jobs?queue=mail"


def test_a_password_is_kept_but_not_shown(folder: Folder) -> None:
    settings = folder.load(f'[worker]\nqueue = "{WITH_PASSWORD}"')
    assert settings.worker.queue == WITH_PASSWORD
    assert row(settings, "worker.queue").value == WITHOUT
    assert "hunter2" not in f"{settings!r} {settings} {settings.worker!r} {settings.table()}"


@pytest.mark.parametrize(
    ("toml", "environ", "overrides"),
    [
        ("[worker]\nqueue = 'app:hunter2@db'", {}, {}),
        ("[worker]\nqueeu = 'redis://:hunter2@db/0'", {}, {}),
        ("[worker]\nlease = 'redis://:hunter2@db/0'", {}, {}),
        ("[worker]\nqueue = ['redis://:hunter2@db/0']", {}, {}),
        ("[worker]\nqueue = {url = 'redis://:hunter2@db/0'}", {}, {}),
        ("[worker]\npassword = 'hunter2'", {}, {}),
        ("", {"POLLWISE_WORKER_LEASE": "redis://:hunter2@db/0"}, {}),
        ("", {"POLLWISE_QUEUES": "redis://:hunter2@db/0"}, {}),
        ("", {"POLLWISE_API_TOKEN": "hunter2"}, {}),
        ("", {}, {"worker.queue": "postgresql:/app:hunter2@db"}),
        ("", {}, {"worker.polling.min_interval": "redis://:hunter2@db/0"}),
    ],
)
def test_no_error_shows_a_password(
    folder: Folder, toml: str, environ: dict[str, str], overrides: dict[str, object]
) -> None:
    with pytest.raises(ConfigError) as caught:
        folder.load(toml, environ, overrides)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (WITH_PASSWORD, WITHOUT),
        ("redis://:pw@h:6379/0", "redis://:***@h:6379/0"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("postgresql://u:p@ss/w:rd@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:forgotten", "postgresql://u:***"),
        ("postgresql://h/d?user=u&password=p&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("az://box/jobs?sig=abc", "az://box/jobs?sig=***"),
        (
            "postgresql://h/d?listen=postgresql://u:p@g/d",
            "postgresql://h/d?listen=postgresql://u:***@g/d",
        ),
        (
            "postgresql://u:p@h/d?listen=postgresql%3A%2F%2Fu%3Ap%40g%2Fd%3Fx%3D1&queue=a",
            "postgresql://u:***@h/d?listen=postgresql://u:***@g/d%3Fx=1&queue=a",
        ),
        (
            "postgresql://h/d?listen=host%3Dg+password%3Dp",
            "postgresql://h/d?listen=host=g%20password=***",
        ),
        ("https://token@controller/jobs", "https://***@controller/jobs"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("memory://", "memory://"),
    ],
)
def test_secrets_are_hidden_and_the_rest_is_not(url: str, expected: str) -> None:
    assert without_secrets(url) == expected
    assert without_secrets(expected) == expected
