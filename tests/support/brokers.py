"""Brokers from Debian: RabbitMQ and NATS. (`tests/kafka.py` has the one for Kafka.)"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from tests.support.daemons import HOST, Keeper, Missing, Server, free_port
from tests.support.servers import debian

#: The types of the fixtures `own_rabbitmq` and `own_nats`.
OwnRabbitMQ: TypeAlias = "Callable[..., RabbitMQ]"
OwnNats: TypeAlias = "Callable[..., Nats]"


class Names(Server):
    """Erlang's name service, which RabbitMQ would otherwise start as a daemon and leave running."""

    unprivileged = True

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(keeper, debian("epmd"))

    @property
    def version(self) -> str:
        return "of Debian"

    def environment(self) -> dict[str, str]:
        return {"ERL_EPMD_ADDRESS": HOST}

    def command(self) -> Sequence[object]:
        return [self.program, "-port", self.port]

    def answers(self) -> bool:
        # It logs nothing.
        with suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return True
        return False


class RabbitMQ(Server):
    """A single RabbitMQ node, whose user `guest` has the password `guest`.

    It has its own ports for Erlang's name service and for other nodes, so that it does not meet
    those of the machine, and leaves nothing behind. `settings` are those of rabbitmq.conf.
    """

    unprivileged = True
    ready = b"completed with"
    #: It computes for four seconds before it is ready, and much longer on a busy machine.
    patience = 120.0
    #: Its first process is a shell, which passes this on.
    end_signal = signal.SIGTERM

    def __init__(self, keeper: Keeper) -> None:
        # Debian's own in /usr/sbin would change to the user and the folder of its service.
        program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        if not program.exists():
            raise Missing("rabbitmq-server is not installed: run scripts/system-deps")
        super().__init__(keeper, program)
        self.settings = {"max_message_size": 1_000_000}
        self._nodes_port = free_port()
        self._names = keeper.begin(Names(keeper), {})

    @property
    def version(self) -> str:
        found = list(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return found[0].name.partition("-")[2] if found else "unknown"

    @property
    def node(self) -> str:
        return f"pollwise{self.port}@localhost"

    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_DIST_PORT": str(self._nodes_port),
            "RABBITMQ_BASE": str(self.folder),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-kernel inet_dist_use_interface {{127,0,0,1}} -setcookie pollwise{self.port} "
                "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
            "ERL_EPMD_PORT": str(self._names.port),
            "ERL_EPMD_ADDRESS": HOST,
        }

    def command(self) -> Sequence[object]:
        chosen = {"log.console.level": "info", "loopback_users.guest": "true", **self.settings}
        lines = [f"{name} = {value}\n" for name, value in chosen.items()]
        self.write("rabbitmq.conf", "".join(lines))
        self.write("enabled_plugins", "[].\n")
        return [self.program]

    def close(self) -> None:
        super().close()
        self._names.close()

    def url(self, user: str = "guest", password: str = "guest", vhost: str = "") -> str:
        return f"amqp://{user}:{password}@{HOST}:{self.port}/{vhost}"


class Nats(Server):
    """A NATS server with JetStream. `settings` are those of its configuration file."""

    ready = b"Server is ready"

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(keeper, debian("nats-server"))
        self.user, self.password = "app", "nats-hunter2"

    def command(self) -> Sequence[object]:
        lines = [f"{name}: {value}\n" for name, value in self.settings.items()]
        users = f"authorization {{ user: {self.user}, password: {self.password} }}\n"
        self.write(
            "nats.conf",
            f"host: {HOST}\nport: {self.port}\n"
            f"jetstream {{ store_dir: {self.folder / 'streams'} }}\n"
            + ("" if "accounts" in self.settings else users)
            + "".join(lines),
        )
        return [self.program, "-c", self.folder / "nats.conf"]

    def url(self, password: str | None = None) -> str:
        return f"nats://{self.user}:{password or self.password}@{HOST}:{self.port}"
