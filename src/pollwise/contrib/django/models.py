"""The model behind the jobs in the admin. It has no table: jobs are read through their queue."""

from __future__ import annotations

from django.db import models


class QueuedJob(models.Model):
    """A job. Permissions: view shows jobs, change retries and cancels them, delete drops them."""

    id = models.CharField(primary_key=True, max_length=200)

    class Meta:
        managed = False
        default_permissions = ("view", "change", "delete")
        verbose_name = "job"
        verbose_name_plural = "jobs"

    def __str__(self) -> str:
        return str(self.id)
