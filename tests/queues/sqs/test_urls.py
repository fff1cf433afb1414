"""Which URLs name a queue of SQS, and what is said of those that do not."""

from __future__ import annotations

import pytest

import pollwise
from pollwise.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    ["https://sqs.eu-west-1.amazonaws.com/jobs", "https://u:hunter2@sqs.x.amazonaws.com/jobs",
     "https://sqs.x.amazonaws.com//jobs", "https://host/1/no name"],
)  # fmt: skip
def test_a_url_that_is_no_queues_is_refused(url: str) -> None:
    right = "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"
    with pytest.raises(ConfigError, match=f"not the URL of an SQS queue.*{right}") as raised:
        pollwise.open(url)
    assert "hunter2" not in str(raised.value)
    for good in (right, "http://localhost:4566/queue/eu-west-1/000000000000/jobs"):
        assert pollwise.open(good).name == "jobs"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqs://", "does not name an SQS queue"),
        ("sqs://no name", "does not name an SQS queue; write sqs://jobs"),
        ("sqs://jobs/more", "does not name an SQS queue"),
        ("sqs://me:hunter2@jobs", r"me:\*\*\*@jobs' does not name an SQS queue"),
        ("sqs://jobs?endpoint=http://me:hunter2@host", r"me:\*\*\*@host' holds credentials"),
    ],
)
def test_a_name_that_is_none_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        pollwise.open(url)
    assert "hunter2" not in str(raised.value)
