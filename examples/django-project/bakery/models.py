"""The orders of the bakery."""

from django.db import models


class Order(models.Model):
    bread = models.CharField(max_length=50)
    loaves = models.PositiveIntegerField()
    task = models.CharField(max_length=100, blank=True)
    baked = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.pk}: {self.loaves} {self.bread}"
