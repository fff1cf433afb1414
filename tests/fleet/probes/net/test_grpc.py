"""The probe of gRPC's health checks against a server of HTTP/2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pollwise.fleet.probes.net.grpc import framed, state_in
from pollwise.fleet.targets import Reading
from tests.fleet.probes.kit import certificate, polled, really
from tests.fleet.probes.net.servers import failure, grpc_server, refusal, served

NOT_SERVING = b"\0\0\0\0\2\x08\x02"


def test_a_service_that_serves_is_up() -> None:
    asked: list[tuple[dict[str, str], bytes]] = []

    async def main() -> Reading:
        async with served(grpc_server(asked=asked)) as address:
            await polled("grpc", address=address)
            headers = {"Authorization": "Bearer t0ken"}
            return await polled("grpc", address=address, service="shop.Orders", headers=headers)

    found = really(main)
    assert found.value == "SERVING"
    assert isinstance(found.facts["ms"], float)
    (whole, nothing), (one, service) = asked
    assert whole[":path"] == "/grpc.health.v1.Health/Check"
    assert (whole["te"], whole["content-type"]) == ("trailers", "application/grpc")
    assert whole["grpc-timeout"].endswith("m")
    assert nothing == b"\0\0\0\0\0"
    assert service == b"\0\0\0\0\x0d\x0a\x0bshop.Orders"
    assert one["authorization"] == "Bearer t0ken"


@pytest.mark.parametrize(
    ("server", "said", "permanent"),
    [
        ({"body": NOT_SERVING}, "service 'x' is NOT_SERVING", False),
        ({"body": b"\0\0\0\0\0"}, "service 'x' is UNKNOWN", False),
        ({"body": b"\0\0\0\0\2\x08\x09"}, "in the unknown state 9", False),
        ({"body": b"", "trailers": {"grpc-status": "5"}}, "does not know service 'x'", False),
        ({"body": b"", "trailers": {"grpc-status": "12"}}, "no health service", True),
        (
            {"body": b"", "trailers": {"grpc-status": "16", "grpc-message": "log%20in"}},
            "UNAUTHENTICATED: log in",
            True,
        ),
        (
            {"body": b"", "trailers": {"grpc-status": "14", "grpc-message": "%00busy%0a"}},
            "UNAVAILABLE: busy",
            False,
        ),
        ({"body": b"", "trailers": {"grpc-status": "²"}}, "status '²'", False),
        ({"body": b"", "trailers": {}}, "it has no grpc-status", False),
        ({"headers": {":status": "404"}}, "answered with HTTP 404", False),
        ({"headers": {"content-type": "text/html"}}, "the answer is not gRPC", False),
        ({"body": b"\1\0\0\0\2\x08\x01"}, "it is compressed", False),
        ({"body": b"\0\0\0\0\7\x08\x01"}, "its length is wrong", False),
        ({"body": b""}, "its length is wrong", False),
        ({"body": b"x" * 5000}, "a message of more than 4,096 bytes", False),
    ],
)
def test_another_answer_is_a_failure(server: dict[str, Any], said: str, permanent: bool) -> None:
    error = failure(grpc_server(**server), "grpc", service="x")
    assert said in str(error)
    assert error.permanent is permanent


def test_grpc_over_tls(tmp_path: Path) -> None:
    made_one = certificate(tmp_path, days=5)

    async def main() -> None:
        context = made_one.context()
        context.set_alpn_protocols(["h2"])
        async with served(grpc_server(), context) as address:
            found = await polled("grpc", address=address, tls=True, ca=str(made_one.file))
            assert found.facts["days_left"] == pytest.approx(5, abs=0.2)
            assert "expires in" in found.summary

    really(main)
    # A server that does not choose h2 speaks something else.
    said = str(failure(grpc_server(), "grpc", made_one.context(), tls=True, verify=False))
    assert "does not speak HTTP/2 over TLS" in said


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (b"", 0),
        (b"\x08\x01", 1),
        (b"\x12\x02ab\x08\x02", 2),
        (b"\x19" + b"0" * 8 + b"\x1d0000\x08\x03", 3),
        (b"\x08\x81\x00", 1),
    ],
)
def test_unknown_fields_are_skipped(message: bytes, state: int) -> None:
    assert state_in(b"\0" + len(message).to_bytes(4, "big") + message) == state


@pytest.mark.parametrize(
    "message", [b"\x08", b"\x08" + b"\xff" * 20, b"\x12\x7f", b"\x0b", b"\x1d0"]
)
def test_a_broken_message_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        state_in(b"\0" + len(message).to_bytes(4, "big") + message)


def test_a_long_name_of_a_service_is_framed() -> None:
    raw = framed(b"x" * 300)
    assert raw[:8] == b"\0\0\0\x01\x2f\x0a\xac\x02"
    assert len(raw) == 5 + 303


def test_options_of_grpc_are_checked() -> None:
    said = refusal("grpc", service="x" * 5000, headers={"grpc-timeout": "1", "te": "x"}, tsl=True)
    assert "address is missing" in said
    assert "longer than 4,096 bytes" in said
    assert "'grpc-timeout', which is set by the probe" in said
    assert "tsl is not an option; did you mean tls?" in said
