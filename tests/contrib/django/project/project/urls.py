from __future__ import annotations

from django.contrib import admin
from django.urls import path
from shop import views

urlpatterns = [path("orders", views.order), path("admin/", admin.site.urls)]
