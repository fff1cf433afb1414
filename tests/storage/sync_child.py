"""Programs without an event loop, for test_sync.py: `sync_child.py what ...`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

import pollwise
from pollwise import NewJob
from pollwise.errors import StoreError

PUTS = 20


def put(queue: pollwise.SyncQueue, who: str) -> None:
    """From two threads, as a web server does."""
    threads = [
        threading.Thread(target=lambda: [queue.put(NewJob("job", who)) for _ in range(PUTS // 2)])
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fork(url: str) -> None:
    """Open and put before two forks; then parent and children put at the same time."""
    queue = pollwise.open_sync(url)
    put(queue, "before")
    children = []
    for number in range(2):
        child = os.fork()
        if not child:
            put(queue, f"child {number}")
            sys.exit()  # runs what runs at the end of a program
        children.append(child)
    put(queue, "parent")
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("ok")


def interrupt(url: str, job_id: str) -> None:
    queue = pollwise.open_sync(url)
    assert queue.get(job_id) is not None
    try:
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        queue.result(job_id)
    except KeyboardInterrupt:
        print("KeyboardInterrupt")


def silent(scheme: str) -> None:
    """End while a store is open that takes connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    queue = pollwise.open_sync(f"{scheme}://127.0.0.1:{server.getsockname()[1]}/0?timeout=100ms")
    try:
        queue.stats()
    except StoreError:
        print("at its end")


PROGRAMS: dict[str, Callable[..., None]] = {"fork": fork, "interrupt": interrupt, "silent": silent}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
