"""nginx in front of controllers, as users run it: with and without upgrades, with short
timeouts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.daemons import HOST, Keeper, Missing, Server, wait_until


def nginx_program() -> Path:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    found = shutil.which("nginx", path=path)
    if found is None:
        raise Missing("nginx is not installed: run scripts/system-deps")
    return Path(found)


class Nginx(Server):
    """nginx in front of ports of this machine.

    upgrades: whether WebSockets are forwarded. idle: it cuts an answer or a WebSocket after this
        many seconds of silence.
    """

    modes = {"fast": signal.SIGTERM, "smart": signal.SIGQUIT}
    end_signal = signal.SIGTERM

    def __init__(
        self,
        keeper: Keeper,
        *ports: int,
        upgrades: bool = True,
        idle: float = 30.0,
        tls: bool = False,
    ) -> None:
        super().__init__(keeper, nginx_program())
        self.tls = tls
        self.certificate = self.folder / "cert.pem"
        if tls:
            self.run(
                "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                "-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST}",
                "-keyout", self.folder / "key.pem", "-out", self.certificate,
            )  # fmt: skip
        self.ports = ports
        self.upgrades = upgrades
        self.idle = idle

    @property
    def version(self) -> str:
        said = subprocess.run([self.program, "-v"], capture_output=True, text=True, check=True)
        return said.stderr.rpartition("/")[2].strip()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://{HOST}:{self.port}"

    def command(self) -> Sequence[object]:
        self._configure()
        return [self.program, "-p", self.folder, "-c", self.folder / "nginx.conf"]

    def answers(self) -> bool:
        return (self.folder / "pid").exists() and (self.folder / "pid").read_text() != ""

    def reload(self, **changes: object) -> None:
        """Change its settings; open connections are cut."""
        for name, value in changes.items():
            setattr(self, name, value)
        before = set(self.pids())
        self._configure()
        os.kill(self.pid, signal.SIGHUP)
        wait_until(lambda: bool(set(self.pids()) - before), f"reload of {self}")
        for pid in before - {self.pid}:
            try:
                os.kill(pid, signal.SIGTERM)  # otherwise old workers would keep connections
            except ProcessLookupError:
                continue
        wait_until(lambda: not before & (set(self.pids()) - {self.pid}), f"reload of {self}")

    def _configure(self) -> None:
        upstream = "\n".join(
            f"    server {HOST}:{port} max_fails=1 fail_timeout=1s;" for port in self.ports
        )
        upgrade = (
            "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $upgraded;"
            if self.upgrades
            else 'proxy_set_header Upgrade ""; proxy_set_header Connection "";'
        )
        user = f"user {'nobody'} nogroup;" if os.geteuid() == 0 else ""
        key = f"{self.folder}/key.pem"
        keys = f"ssl_certificate {self.certificate}; ssl_certificate_key {key};" if self.tls else ""
        idle = f"{round(self.idle * 1000)}ms"
        self.write(
            "nginx.conf",
            f"""daemon off; {user} pid {self.folder}/pid; error_log stderr warn;
worker_processes 1; events {{ worker_connections 1024; }}
http {{
  access_log {self.folder}/access.log; client_max_body_size 0;
  {"".join(f"{n}_temp_path {self.folder}/{n};" for n in TEMPORARY)}
  map $http_upgrade $upgraded {{ default upgrade; '' ''; }}
  upstream controllers {{ {upstream} keepalive 8; }}
  server {{
    listen {HOST}:{self.port}{" ssl http2" if self.tls else ""}; {keys}
    keepalive_timeout {idle}; send_timeout {idle};
    location / {{
      proxy_pass http://controllers; proxy_http_version 1.1; proxy_buffering off;
      proxy_request_buffering off; proxy_set_header Host $http_host; {upgrade}
      proxy_read_timeout {idle}; proxy_send_timeout {idle}; proxy_connect_timeout 2s;
      proxy_next_upstream error timeout non_idempotent;
    }}
  }}
}}
""",
        )


TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
