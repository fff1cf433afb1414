"""The tasks of the bakery. Workers find them, because this module is called tasks."""

from bakery.models import Order
from pollwise import Reject

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task

MENU = {"rye": 4, "wheat": 3}  # minutes for a loaf


@task()
def bake(number: int) -> str:
    """Bake an order. It may run twice: a second time changes nothing."""
    order = Order.objects.get(pk=number)
    if order.bread not in MENU:
        raise Reject(f"{order.bread} is not on the menu")  # no retry would help
    minutes = MENU[order.bread] * order.loaves
    Order.objects.filter(pk=number).update(baked=True)
    return f"{order.loaves} {order.bread} in {minutes} minutes"
