"""Each publisher needs its own extra and no other's, and says which is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from pollwise.outbox import publishers

ROOT = Path(__file__).resolve().parents[3]

#: Which packages a publisher imports, and which extra has them.
NEEDS = {
    "KafkaPublisher": ("aiokafka", "kafka"),
    "NatsPublisher": ("nats", "nats"),
    "RabbitPublisher": ("aio_pika", "rabbitmq"),
    "RedisStreamPublisher": ("redis", "redis"),
    "SnsPublisher": ("aiobotocore", "sqs"),
    "SqsPublisher": ("aiobotocore", "sqs"),
    "WebhookPublisher": ("httpx", "webhook"),
}
PACKAGES = sorted({package for package, _ in NEEDS.values()})

#: Hides packages as if they were not installed, then says what importing publishers says.
CODE = """
import sys
for name in sys.argv[2].split(","):
    sys.modules[name] = None
from pollwise.outbox import publishers
from pollwise.outbox.publishers import CloudEvents, sign, verify
header = sign("x" * 16, b"body")
verify("x" * 16, {"Pollwise-Signature": header}, b"body")
for name in sys.argv[1].split(","):
    try:
        getattr(publishers, name)
    except ImportError as error:
        print(name, type(error).__name__, error)
    else:
        print(name, "imported")
"""


def imported(names: Iterable[str], hidden: Iterable[str]) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", CODE, ",".join(names), ",".join(hidden)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_what_is_missing_is_told_with_the_command_that_installs_it() -> None:
    for said, (name, (_, extra)) in zip(imported(NEEDS, PACKAGES), NEEDS.items(), strict=True):
        assert said.startswith(f"{name} MissingExtra publishing to ")
        assert said.endswith(f"needs an extra: pip install 'pollwise[{extra}]'")


@pytest.mark.parametrize("package", PACKAGES)
def test_nobody_needs_anothers_extra(package: str) -> None:
    names = [name for name, (needed, _) in NEEDS.items() if needed == package]
    others = [other for other in PACKAGES if other != package]
    assert imported(names, others) == [f"{name} imported" for name in names]


def test_every_extra_is_in_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {extra for _, extra in NEEDS.values()} <= project["optional-dependencies"].keys()


def test_all_publishers_are_there_by_name() -> None:
    assert set(NEEDS) <= set(publishers.__all__)
    for name in publishers.__all__:
        assert getattr(publishers, name).__doc__ or name == "Envelope"
    with pytest.raises(AttributeError, match="has no attribute 'PigeonPublisher'"):
        _ = publishers.PigeonPublisher
