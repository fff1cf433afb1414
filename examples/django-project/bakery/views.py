"""The views: an order and its task are one transaction."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from bakery.models import Order
from bakery.tasks import bake

LOAVES_MAX = 50


@csrf_exempt  # this page is called by programs
@require_POST
def orders(request: HttpRequest) -> HttpResponse:
    loaves = int(request.POST["loaves"])
    with transaction.atomic():
        order = Order.objects.create(bread=request.POST["bread"], loaves=loaves)
        order.task = bake.enqueue(order.pk).id
        order.save()
        if loaves > LOAVES_MAX:
            transaction.set_rollback(True)  # no order, and no task
            return JsonResponse({"error": f"at most {LOAVES_MAX} loaves"}, status=400)
    return JsonResponse({"order": order.pk}, status=201)


def order(request: HttpRequest, number: int) -> HttpResponse:
    found = get_object_or_404(Order, pk=number)
    result = bake.get_result(found.task)
    done = result.return_value if result.status == "SUCCESSFUL" else None
    return JsonResponse({"order": str(found), "status": result.status, "result": done})
