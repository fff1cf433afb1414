"""A Kafka for tests: the mock cluster of librdkafka, which the wheel confluent-kafka brings.

The authors of the C client wrote this implementation of a broker. It listens on TCP, keeps messages
in memory, hands them to consumers, and can be told to make errors. No real broker was available on
PyPI, in Debian or on npm.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.metadata import files
from typing import Any, Self

#: Numbers of requests and errors in the protocol.
PRODUCE = 0
UNKNOWN_TOPIC = 3
MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS, TOPIC_DENIED, OUT_OF_ORDER = 10, 19, 29, 45
_PRODUCER = 0
_BROKER = 1


def _library() -> Any:
    for file in files("confluent-kafka") or ():
        if file.name.startswith("librdkafka"):
            library = ctypes.CDLL(str(file.locate()))
            break
    else:
        raise AssertionError("the wheel confluent-kafka has no librdkafka for this machine")
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class Kafka:
    """A cluster with one broker; topics are created at first use, with 4 partitions."""

    def __init__(self) -> None:
        self._library = _library()
        said = ctypes.create_string_buffer(512)
        configured = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        client = self._library.rd_kafka_new(_PRODUCER, configured, said, ctypes.c_size_t(512))
        assert client, said.value
        self._client = ctypes.c_void_p(client)
        self._cluster = ctypes.c_void_p(
            self._library.rd_kafka_mock_cluster_new(self._client, ctypes.c_int(1))
        )
        servers: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.servers = servers.decode()

    @property
    def port(self) -> int:
        return int(self.servers.rpartition(":")[2])

    def create(self, topic: str, partitions: int = 4) -> None:
        self._call("topic_create", topic.encode(), ctypes.c_int(partitions), ctypes.c_int(1))

    def down(self) -> None:
        """Cut all connections, and accept no new ones."""
        self._call("broker_set_down", ctypes.c_int32(_BROKER))

    def up(self) -> None:
        self._call("broker_set_up", ctypes.c_int32(_BROKER))

    def slow(self, seconds: float) -> None:
        """Delay all answers by this much."""
        self._call("broker_set_rtt", ctypes.c_int32(_BROKER), ctypes.c_int(round(seconds * 1000)))

    def fail(self, request: int, errors: Sequence[int]) -> None:
        """Answer the next requests of this kind with these errors."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._call(
            "push_request_errors_array",
            ctypes.c_int16(request), ctypes.c_size_t(len(errors)), array,
        )  # fmt: skip

    def fail_topic(self, topic: str, error: int) -> None:
        """Answer requests for the topic with this error; 0 ends that."""
        self._call("topic_set_error", topic.encode(), ctypes.c_int(error))

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def _call(self, what: str, *arguments: Any) -> None:
        error = getattr(self._library, f"rd_kafka_mock_{what}")(self._cluster, *arguments)
        nothing = what in ("push_request_errors_array", "topic_set_error")  # what they return
        assert nothing or error == 0, f"{what}: {error}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
