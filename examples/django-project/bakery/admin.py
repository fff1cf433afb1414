"""Orders in the admin. Jobs are there by themselves, as "Pollwise › Jobs"."""

from django.contrib import admin

from bakery.models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["id", "bread", "loaves", "baked"]
