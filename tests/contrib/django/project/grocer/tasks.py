"""The tasks of the grocer."""

import os
from typing import Any

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

from pollwise import Retry


class OutOfStock(Exception):
    """The order cannot be delivered."""


@task()
def deliver(name: str, count: int = 1) -> dict[str, Any]:
    from grocer.models import Order

    changed = Order.objects.filter(name=name).update(done=True)
    return {"name": name, "count": count, "orders": changed, "pid": os.getpid()}


@task(priority=10)
async def deliver_async(name: str) -> int:
    from grocer.models import Order

    return await Order.objects.filter(name=name).aupdate(done=True)


@task(takes_context=True, retry=Retry.fixed("1ms", attempts=3, exclude=OutOfStock))
def fail(context: Any, name: str) -> None:
    if name == "gone":
        raise OutOfStock(f"no {name} left")
    if context.attempt < 3 or name == "always":
        raise ValueError(f"attempt {context.attempt} of {name}")


@task(queue_name="slow")
def slow(name: str) -> str:
    return f"slowly: {name}"


@task()
def not_json() -> Any:
    return object()


def not_a_task(name: str) -> str:
    raise AssertionError(f"a job ran what is not a task: {name}")
