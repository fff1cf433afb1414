"""settings.POLLWISE and settings.TASKS: what is refused when Django starts, and where jobs go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pollwise import Retry
from pollwise.errors import ConfigError
from tests.contrib.django.sites import Site, postgres_database, set_up_django, sqlite_database
from tests.support.servers import Postgres

set_up_django()

from django.core.management import call_command  # noqa: E402
from django.core.management.base import SystemCheckError  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from django.test import modify_settings, override_settings  # noqa: E402
from grocer.models import Order  # noqa: E402
from grocer.tasks import deliver  # noqa: E402

from pollwise.contrib.django import database_url, queue_url  # noqa: E402
from pollwise.contrib.django.api import task_backends  # noqa: E402
from pollwise.contrib.django.checks import check_settings  # noqa: E402
from pollwise.contrib.django.conf import loaded  # noqa: E402

BACKEND = "pollwise.contrib.django.backend.PollwiseBackend"


def problems(**given: Any) -> str:
    """What the checks say about settings."""
    with override_settings(**given):
        try:
            call_command("check")
        except SystemCheckError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "must be a dictionary, not list"),
        ({"queu": "memory://"}, "has no key 'queu'; did you mean 'queue'?"),
        ({"queue": "nowhere://x"}, "no queue has the scheme 'nowhere'"),
        ({"queue": 7}, 'must be a URL, {"url": …, "on_commit": alias} or {"database": alias}'),
        ({"queue": {}}, "with both or none"),
        ({"queue": {"database": "defualt"}}, "DATABASES has no 'defualt'; did you mean 'default'?"),
        ({"queue": {"database": "default", "kep": "1h"}}, "did you mean 'keep'?"),
        ({"queue": {"database": "default", "on_commit": None}}, "leave out `on_commit`"),
        ({"queue": {"url": "memory://", "on_commit": "x"}}, "DATABASES has no 'x'"),
        ({"queue": "memory://?queue=mail"}, "come from QUEUES in settings.TASKS"),
        ({"worker": {"concurency": 3}}, "did you mean"),
        ({"worker": {"concurrency": 0}}, "worker.concurrency = 0 (settings.POLLWISE) must be"),
        ({"worker": 3}, "must be a dictionary, as the table [worker] of pollwise.toml"),
        ({"worker": {"queue": "memory://"}}, "worker.queue (settings.POLLWISE) has no effect"),
        ({"outbox": {"target": 3}}, "must be text"),
        ({"outbox": {"bach": 3}}, "did you mean"),
        ({"codec": {"payloads": "aes-gmc"}}, "did you mean 'aes-gcm'?"),
        ({"codec": {"payloads": "aes-gcm"}}, "but there is no key"),
        ({"modules": ["grocer.nothing"]}, "'grocer.nothing' cannot be imported"),
        ({"modules": "grocer.tasks"}, "must be a list"),
    ],
)
def test_wrong_settings_are_refused_at_the_start(given: Any, said: str) -> None:
    assert said in problems(POLLWISE=given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queu": "memory://"}, "['OPTIONS'] has no 'queu'; did you mean 'queue'?"),
        ({"queue": "nowhere://x"}, "no queue has the scheme 'nowhere'"),
        ({"retry": 3}, "['retry'] = 3 is not a Retry"),
        ({"timeout": "soon"}, "['timeout'] = 'soon'"),
    ],
)
def test_wrong_options_of_a_backend_are_refused(options: dict[str, Any], said: str) -> None:
    tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    assert said in problems(TASKS=tasks)


def test_a_project_without_the_app_is_warned() -> None:
    backend = task_backends["default"]
    assert [*backend.check()] == []
    with modify_settings(INSTALLED_APPS={"remove": "pollwise.contrib.django"}):
        [warning] = backend.check()
    assert warning.hint == 'Add "pollwise.contrib.django" to INSTALLED_APPS.'


def test_a_queue_with_a_colon_is_refused() -> None:
    assert "must not have a colon" in problems(
        TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "a:b"]}}
    )


def test_right_settings_pass() -> None:
    pollwise = {
        "queue": {"url": "memory://", "on_commit": None, "keep": "1h"},
        "modules": ["grocer.tasks"],
        "worker": {"concurrency": 3, "polling": {"strategy": "fixed", "interval": "1s"}},
        "outbox": {"target": "grocer.events:outbox", "batch": 10},
    }
    tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"retry": Retry.never(), "timeout": "5s"}}}
    assert problems(POLLWISE=pollwise, TASKS=tasks) == ""
    with override_settings(POLLWISE=pollwise):
        assert loaded().worker.concurrency == 3
        assert loaded({"worker.concurrency": 5}).worker.concurrency == 5
        assert queue_url("mail") == "memory://?queue=mail&keep=1h"
        assert check_settings() == []


def test_the_url_of_a_database_is_what_django_connects_with(tmp_path: Path) -> None:
    site = Site(
        {
            "default": sqlite_database(tmp_path / "a grocer.db"),
            "other": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "sh/op",
                "USER": "o@r",
                "PASSWORD": "p:w",
                "HOST": "db.example",
                "PORT": 5433,
                "OPTIONS": {"sslmode": "require", "assume_role": "the owner"},
            },
        }
    )
    with site.used():
        path = str(tmp_path / "a%20grocer.db")
        assert database_url() == f"sqlite:///{path}"
        assert database_url(keep="1h") == f"sqlite:///{path}?keep=1h"
        url = database_url("other", queue="mail")
        assert url.startswith("postgresql://o%40r:p%3Aw@/sh%2Fop?")
        for part in ("host=db.example", "port=5433", "sslmode=require", "queue=mail"):
            assert part in url
        assert "options=-c%20role%3Dthe%5C%20owner" in url
        with pytest.raises(ConfigError, match="did you mean 'other'"):
            database_url("othr")


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="in memory, so no worker can open it"):
        database_url("default")


def test_tests_in_a_database_in_memory_can_put() -> None:
    """As under `manage.py test`, where SQLite is in memory."""
    memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    with Site({"default": memory}).used():
        call_command("migrate", run_syncdb=True, verbosity=0)
        result = deliver.enqueue("tea")
        result.refresh()
        assert result.id == "default:1"


def test_another_store_gets_the_job_after_the_commit(tmp_path: Path) -> None:
    pollwise = {"queue": f"sqlite:///{tmp_path}/jobs.db"}
    with Site({"default": sqlite_database(tmp_path / "grocer.db")}).used():
        call_command("migrate", run_syncdb=True, verbosity=0)
        with override_settings(POLLWISE=pollwise, TASKS={"default": {"BACKEND": BACKEND}}):
            queue = task_backends["default"].queue("default")
            with transaction.atomic():
                Order.objects.create(name="tea")
                result = deliver.enqueue("tea")
                assert "not put yet" in repr(result)
                with pytest.raises(ValueError, match="put after the commit"):
                    _ = result.id
                assert queue.call("jobs") == []
            assert [info.job.id for info in queue.call("jobs")] == [result.id.partition(":")[2]]
            with pytest.raises(KeyError), transaction.atomic():
                deliver.enqueue("coffee")
                raise KeyError
            assert deliver.enqueue("milk").id  # at once, without a transaction
            assert len(queue.call("jobs")) == 2


def test_a_store_may_be_put_to_at_once_in_a_transaction(tmp_path: Path) -> None:
    place = {"url": f"sqlite:///{tmp_path}/jobs.db", "on_commit": None}
    tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"queue": place}}}
    with Site({"default": sqlite_database(tmp_path / "grocer.db")}).used():
        with override_settings(TASKS=tasks), pytest.raises(KeyError), transaction.atomic():
            result = deliver.enqueue("tea")
            raise KeyError
        with override_settings(TASKS=tasks):
            result.refresh()


def test_the_queue_may_be_in_another_database(tmp_path: Path, postgres: Postgres) -> None:
    site = Site(
        {
            "default": sqlite_database(tmp_path / "grocer.db"),
            "jobs": postgres_database(postgres, "django_jobs"),
        }
    )
    pollwise = {"queue": {"database": "jobs", "keep": "1h"}}
    with site.used(), override_settings(POLLWISE=pollwise, TASKS={"default": {"BACKEND": BACKEND}}):
        call_command("migrate", run_syncdb=True, verbosity=0)
        with pytest.raises(Exception, match=r"Run `manage\.py migrate --database jobs`"):
            deliver.enqueue("tea")
        call_command("migrate", database="jobs", run_syncdb=True, verbosity=0)
        with pytest.raises(KeyError), transaction.atomic(using="jobs"):
            undone = deliver.enqueue("tea")
            raise KeyError
        with pytest.raises(KeyError), transaction.atomic(using="default"):
            kept = deliver.enqueue("tea")  # the transaction is another database's
            raise KeyError
        kept.refresh()
        with pytest.raises(Exception, match=undone.id):
            undone.refresh()
        assert "jobs" in connections
