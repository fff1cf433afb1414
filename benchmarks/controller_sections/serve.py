"""The measured server: a controller as `pollwise serve` runs it, or a bare endpoint.

It prints its port in the first line, and then executes the commands on its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import uvicorn  # noqa: E402
import uvloop  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import Response  # noqa: E402
from starlette.routing import Route  # noqa: E402

from pollwise.controller import Controller, ControllerOptions  # noqa: E402
from pollwise.controller.http.server import (  # noqa: E402
    HEAD_WITHIN,
    KEEP_ALIVE,
    PING_EVERY,
    ControllerServer,
    protocol,
)
from pollwise.controller.security.tokens import hash_of, new_secret  # noqa: E402
from pollwise.runtime.signals import stopping_on_signals  # noqa: E402

NOTHING = b'{"job":null,"next_poll_s":5.0,"cancel":[],"drain":false}'
NOTHING_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(NOTHING)),
]


async def nothing(_: Request) -> Response:
    return Response(NOTHING, media_type="application/json")


def bare_route() -> Starlette:
    """A poll that does nothing, in a framework."""
    return Starlette(routes=[Route("/api/workers/poll", nothing)])


async def bare(_: Any, __: Any, send: Any) -> None:
    """A poll that does nothing and reads nothing: the limit."""
    await send({"type": "http.response.start", "status": 200, "headers": NOTHING_HEADERS})
    await send({"type": "http.response.body", "body": NOTHING})


class Commands:
    """What the benchmark asks for beside requests; this is not part of the measurements."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._options = controller.options

    async def run(self, name: str, *given: Any) -> Any:
        return await getattr(self, name)(*given)

    async def token(self) -> str:
        _, secret = await self._controller.tokens.make("admin", "bench")
        return str(secret)

    async def workers(self, count: int, target: str) -> int:
        """Register workers, and write the token of each to a file."""
        expires_at = self._controller.clock.epoch() + self._options.span("registered_for")

        async def one(number: int) -> list[str]:
            secret = new_secret()
            row = await self._controller.registry.register(
                f"worker-{number}", {"platform": "linux", "memory_gb": 16}, 1,
                token_hash=hash_of(secret), expires_at=expires_at, who="bench", address="127.0.0.1",
            )  # fmt: skip
            return [row.id, secret]

        made = await asyncio.gather(*map(one, range(count)))
        await asyncio.to_thread(Path(target).write_text, json.dumps(made))
        return count

    async def jobs(self, count: int) -> int:
        async def one(number: int) -> None:
            await self._controller.put("build", {"ref": number}, by="bench")

        await asyncio.gather(*map(one, range(count)))
        return count

    async def memory(self) -> float:
        """Resident memory, in bytes."""
        gc.collect()
        statm = await asyncio.to_thread(Path("/proc/self/statm").read_text)
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def known(self) -> int:
        return len(self._controller.registry)


async def obey(commands: Commands | None) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        name, *given = json.loads(line)
        assert commands is not None
        say(await commands.run(name, *given))


def say(value: Any) -> None:
    print(json.dumps({"value": value}), flush=True)


BARE: dict[str, Any] = {"bare": bare, "bare route": bare_route()}


async def main(store: str, options: dict[str, Any]) -> None:
    commands = None
    extra: dict[str, Any] = {}
    app: Any
    if store in BARE:
        app = BARE[store]
    else:
        folder = Path(store).parent / "artefacts"
        controller = Controller(
            f"sqlite:///{store}", ControllerOptions(artefacts=folder, **options)
        )
        app, commands = controller.app, Commands(controller)
        extra = {
            "http": protocol(HEAD_WITHIN),
            "ws_ping_interval": PING_EVERY,
            "ws_ping_timeout": PING_EVERY,
            "timeout_keep_alive": KEEP_ALIVE,
        }
    config = uvicorn.Config(
        app, port=0, access_log=False, log_config=None, server_header=False,
        timeout_graceful_shutdown=2, lifespan="on" if commands else "off", **extra,
    )  # fmt: skip
    stop = app.controller.stop_waiting if commands else lambda: None
    server = ControllerServer(config, stop, lambda url: say(int(url.rpartition(":")[2])))
    obeying = asyncio.ensure_future(obey(commands))
    try:
        with stopping_on_signals(lambda: setattr(server, "should_exit", True)):
            await server.serve()
    finally:
        obeying.cancel()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])  # the clients have the others
    uvloop.run(main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}))
