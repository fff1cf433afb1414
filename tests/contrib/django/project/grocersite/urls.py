"""The URLs of the project that the tests use."""

from django.contrib import admin
from django.urls import path
from grocer import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("order/", views.order),
    path("order-async/", views.order_async),
    path("result/<str:result_id>/", views.result),
    path("result-async/<str:result_id>/", views.result_async),
]
