"""Set the project up in a temporary folder, order bread, run the tasks, look, and exit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def manage(*words: str) -> None:
    """Run a command of the project."""
    subprocess.run([sys.executable, "manage.py", *words], cwd=Path(__file__).parent, check=False)


def main() -> None:
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)  # the tables of the bakery and those of the queue
    client = Client()
    for bread, loaves in [("rye", 2), ("wheat", 3), ("pumpkin", 1), ("rye", 999)]:
        answer = client.post("/orders/", {"bread": bread, "loaves": loaves})
        print(f"{loaves} {bread}: {answer.status_code} {answer.json()}", flush=True)
    print(client.get("/orders/1/").json(), flush=True)

    # In production it runs for good: python manage.py pollwise_worker
    manage("pollwise_worker", "--once", "--log-level", "warning")
    for number in (1, 2, 3):
        print(client.get(f"/orders/{number}/").json())

    client.force_login(User.objects.create_superuser("admin"))
    page = client.get("/admin/pollwise/queuedjob/").content.decode()
    jobs = re.findall(r"bakery\.tasks\.\w+", page)
    print(f"the admin lists the jobs of {sorted(set(jobs))}")


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "bakerysite.settings"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BAKERY_DATABASE"] = str(Path(folder) / "bakery.sqlite3")
        main()
