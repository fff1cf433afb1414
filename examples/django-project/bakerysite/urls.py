"""The URLs of the project."""

from django.contrib import admin
from django.urls import path

from bakery import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/", views.orders),
    path("orders/<int:number>/", views.order),
]
