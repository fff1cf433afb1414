"""Start the shop, a relay and a worker, place orders, print what happens, and exit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

import pollwise

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(stack: ExitStack, *command: str) -> None:
    """Run a Python program in the background until the stack is closed."""
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=HERE)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def wait_until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within a minute")
        time.sleep(0.1)


def main(database: str) -> None:
    port = free_port()
    with ExitStack() as stack:
        shop = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}"))

        def is_up() -> bool:
            with suppress(httpx.TransportError):
                return shop.get("/mails").is_success
            return False

        start(stack, "uvicorn", "shop:app", "--port", str(port), "--log-level", "warning")
        wait_until(is_up, "the shop is up")
        start(stack, "pollwise", "outbox", "run", "shop_tasks:outbox", "--log-level", "warning")
        start(stack, "pollwise", "worker", "shop_tasks:worker", "--log-level", "warning")

        for customer, cents in [("ada", 900), ("ada", 950), ("ada", 990), ("grace", 1990)]:
            answer = shop.post("/orders", json={"customer": customer, "cents": cents})
            print(f"order of {customer}: {answer.status_code} {answer.json()}", flush=True)
        refused = shop.post("/orders", json={"customer": "edsger", "cents": 999_999})
        print(f"order of edsger: {refused.status_code} {refused.json()}", flush=True)

        wait_until(lambda: len(shop.get("/mails").json()) == 4, "all mails are sent")
        print("mails:", [mail["to"] for mail in shop.get("/mails").json()])

        with pollwise.open_sync(database) as queue:  # or wait until two o'clock
            job = queue.schedules.run("nightly_report")
            print("nightly report:", queue.result(job, timeout="30s"), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOP_DATABASE"] = f"sqlite:///{Path(folder) / 'shop.db'}"
        main(os.environ["SHOP_DATABASE"])
