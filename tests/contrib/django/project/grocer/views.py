"""The views of the grocer: an order is saved, and its delivery is a task."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse

from grocer.models import Order
from grocer.tasks import deliver, deliver_async


class Refused(Exception):
    """The request is refused after the task was put."""


@transaction.atomic
def _order(name: str, refuse: bool) -> str:
    Order.objects.create(name=name)
    result = deliver.enqueue(name, count=2)
    if refuse:
        raise Refused
    return str(result.id)


def order(request: HttpRequest) -> HttpResponse:
    try:
        return JsonResponse({"id": _order(request.GET["name"], "refuse" in request.GET)})
    except Refused:
        return JsonResponse({}, status=409)


async def order_async(request: HttpRequest) -> HttpResponse:
    await Order.objects.acreate(name=request.GET["name"])
    result = await deliver_async.aenqueue(request.GET["name"])
    return JsonResponse({"id": result.id})


def result(request: HttpRequest, result_id: str) -> HttpResponse:
    found = deliver.get_result(result_id)
    return JsonResponse({"status": found.status, "value": found._return_value})


async def result_async(request: HttpRequest, result_id: str) -> HttpResponse:
    found = await deliver_async.aget_result(result_id)
    return JsonResponse({"status": found.status, "value": found._return_value})
