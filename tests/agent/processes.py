"""`pollwise serve` and `pollwise agent` as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import httpx

from tests.support.daemons import HOST, Keeper, Server, wait_until
from tests.support.forked import Forked
from tests.support.private import write_private

#: The settings of a controller with short intervals.
QUICK = {
    "min_interval": "200ms",
    "target_pickup": "300ms",
    "poll_interval": "500ms",
    "max_interval": "1s",
    "heartbeat_timeout": "30s",
}


#: Made once: loading certificates for each new client would take longer than a request.
HTTP = httpx.Client(timeout=20, limits=httpx.Limits(max_keepalive_connections=0))


class ServeProcess(Server):
    """`pollwise serve` on a SQLite file of its own, or on another store.

    beside: another controller of the same store, whose admin token is valid here too.
    """

    def __init__(
        self,
        keeper: Keeper,
        store: str | None = None,
        beside: ServeProcess | None = None,
        **settings: str,
    ) -> None:
        super().__init__(keeper, Path(sys.executable))
        self.settings = {**QUICK, **settings}
        self.store = store or f"sqlite:///{self.folder}/jobs.db"
        self.admin: Path = beside.admin if beside is not None else self.folder / "admin.token"

    def command(self) -> Sequence[object]:
        migrate = ["--migrate"] if self.store.startswith("postgresql") else []
        pairs = [f"--set=controller.{name}={value}" for name, value in self.settings.items()]
        return [
            "-m", "pollwise", "serve", self.store,
            "--port", self.port, "--token-file", self.admin, *migrate, *pairs,
        ]  # fmt: skip

    def _popen(self, command: Sequence[object], output: IO[bytes]) -> Forked:
        # A separate start would spend a second on imports.
        return Forked(
            command, env=self._environment(), log=output, folder=self.keeper.folder, session=True
        )

    def answers(self) -> bool:
        try:
            return HTTP.get(f"{self.url}/livez", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.admin.read_text().strip()}"}

    def ask(self, method: str, path: str, **given: Any) -> Any:
        answer = HTTP.request(method, self.url + path, headers=self.headers, **given)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def log_of(self, job_id: str) -> str:
        """The output of a job."""
        return HTTP.get(f"{self.url}/api/jobs/{job_id}/logs", headers=self.headers).text

    def token(self, scope: str) -> Path:
        """A file that holds a new token."""
        told = self.ask("POST", "/api/tokens", json={"scope": scope, "name": f"test {scope}"})
        file = self.folder / f"{scope}.token"
        write_private(file, told["token"])
        return file

    def put(self, kind: str = "build", **given: Any) -> str:
        return str(self.ask("POST", "/api/jobs", json={"kind": kind, **given})["id"])

    def job(self, job_id: str) -> Any:
        return self.ask("GET", f"/api/jobs/{job_id}")

    def await_state(self, job_id: str, status: str, within: float = 30.0) -> Any:
        wait_until(lambda: self.job(job_id)["state"] == status, f"{job_id} {status}", within)
        return self.job(job_id)


class AgentProcess:
    """`pollwise agent` with a shell script for a command."""

    def __init__(
        self,
        url: str,
        token: Path,
        folder: Path,
        script: str,
        *options: str,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.log_file = folder / "agent.log"
        program = folder / "job.sh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "pollwise", "agent", "--controller", url,
                    "--token-file", str(token), "--folder", str(folder / "agent"), *options,
                    "--", str(program), "{payload}",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                cwd=folder, env={**os.environ, **(environ or {})},
            )  # fmt: skip
        self.folder = folder

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def await_log(self, text: str, count: int = 1, within: float = 30.0) -> None:
        wait_until(lambda: self.log.count(text) >= count, f"{text!r} in {self.log}", within)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def stop(self, within: float = 30.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
