"""Orders, which tasks work on."""

from django.db import models


class Order(models.Model):
    name = models.CharField(max_length=100)
    done = models.BooleanField(default=False)
