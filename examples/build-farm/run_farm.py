"""Start a controller and an agent, put a build, print its log, save its file, and exit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from put_build import build, connect

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pollwise(*words: str) -> list[str]:
    return [sys.executable, "-m", "pollwise", *words]


def start(stack: ExitStack, *words: str) -> None:
    """Run a command of pollwise in the background until the stack is closed."""
    process = subprocess.Popen(pollwise(*words))
    stack.callback(process.wait)
    stack.callback(process.terminate)


def new_token(scope: str, store: str) -> str:
    command = pollwise("serve", "token", "create", scope, "--name", "demo", "--store", store)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def wait_for(address: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            httpx.get(f"{address}/livez")
            return
        time.sleep(0.1)
    raise TimeoutError(f"{address} did not answer within a minute")


def main(folder: Path) -> None:
    store, port = f"sqlite:///{folder / 'farm.db'}", free_port()
    address = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        start(stack, "serve", store, "--port", str(port), "--log-level", "warning")
        wait_for(address)
        tokens = folder / "machines.token"
        tokens.touch(mode=0o600)
        tokens.write_text(new_token("worker", store))
        start(
            stack,
            *("agent", "--controller", address, "--token-file", str(tokens)),
            *("--folder", str(folder / "work"), "--capability", "memory_gb=16"),
            *("--log-level", "warning", "--", str(HERE / "build.sh")),
        )

        source = folder / "main.c"
        source.write_text("int main(void) { return 0; }\n")
        with connect(address, new_token("put", store)) as farm:
            build(farm, "v1", [source], folder)
        with tarfile.open(folder / "app-v1.tar.gz") as made:
            print("the file has:", [each.name for each in made if each.isfile()], flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the controller writes the token of its administrator here
        main(Path(folder))
