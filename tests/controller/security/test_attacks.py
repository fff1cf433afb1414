"""What somebody might try who means no good, over real sockets: refused, and nothing breaks."""

from __future__ import annotations

import ast
import gzip
import hashlib
import inspect
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from pollwise.controller.http.routes import poll as poll_route
from pollwise.controller.security import auth, tokens
from tests.controller.files.disks import mounted
from tests.controller.security.attackers import Served, answered, code_of, dialled, said
from tests.support.servers import Servers

ID = "0" * 32
MIB = 2**20


@pytest.fixture(scope="module")
def served(servers: Servers) -> Iterator[Served]:
    """A controller, shared: what is done to it here must not matter to it."""
    server = servers.begin(Served(servers, min_interval="0s", artefact_limit=str(MIB)), {})
    yield server
    assert server.running
    assert "Traceback" not in server.log(), server.log()
    server.close()


def taken(served: Served, **given: Any) -> tuple[str, dict[str, str]]:
    """A job, and the worker that has it."""
    kind = f"kind-{len(served.ask('GET', '/api/workers?limit=1000')['workers'])}"
    worker = served.register(kinds=[kind])
    job_id = served.put(kind, **given)
    answer = httpx.get(
        f"{served.url}/api/workers/poll?worker_id={worker['id']}",
        headers={"Authorization": worker["Authorization"]},
    )
    assert answer.json()["job"]["id"] == job_id
    return job_id, {"Authorization": worker["Authorization"]}


# Paths


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "..%2fsecret",
        "%2e%2e/secret",
        "%2e%2e%2fsecret",
        "%252e%252e%252fsecret",
        "%25252e%25252e%25252fsecret",
        "a/../../secret",
        "a/..%2f..%2fsecret",
        "..%5csecret",
        "..\\secret",
        "%c0%ae%c0%ae/secret",
        "%ef%bc%8e%ef%bc%8e/secret",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "//etc/passwd",
        "C:%5cwindows",
        "C:secret",
        "~root/.ssh/id_rsa",
        "secret%00.txt",
        "a%0d%0aX-Forged:%201",
        ".",
        "..",
        "a/",
        "a//b",
        "con.%20",
        "x" * 256,
        "%f0%9f",
    ],
)
def test_names_lead_nowhere_else(served: Served, name: str) -> None:
    job_id, worker = taken(served)
    before = sorted(served.folder.parent.rglob("secret*"))
    for path in (f"/api/jobs/{job_id}/artefacts/{name}", f"/api/jobs/{job_id}/inputs/{name}"):
        status, head, body = said(served.port, "GET", path, served.headers)
        assert status in (400, 404, 405), f"{path}: {status}"
        assert "root:" not in body
        assert "x-forged" not in head.lower().split("\r\n\r\n")[0].replace("x-forged:%", "")
    path = f"/api/jobs/{job_id}/artefacts/{name}"
    status, _, body = said(served.port, "PUT", path, worker, b"overwritten")
    assert status in (400, 404, 405, 422), f"{path}: {status} {body}"
    assert sorted(served.folder.parent.rglob("secret*")) == before
    listed = served.ask("GET", f"/api/jobs/{job_id}/artefacts")
    assert listed["artefacts"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/jobs/../../livez/../etc/passwd",
        f"/api/jobs/{ID}%2f..%2f..%2ftokens",
        "/api/jobs/..%2f..%2fapi%2ftokens",
        "//api/tokens",
        "/api//tokens",
        "/api/tokens;admin=1",
        "/api/tokens%00",
        "/API/TOKENS",
        "http://elsewhere/api/tokens",
        "*",
        "/" + "a/" * 5000,
        "/api/workers/poll/../../tokens",
    ],
)
def test_no_path_goes_around_the_token(served: Served, path: str) -> None:
    status, _, body = said(served.port, "GET", path)
    assert status in (0, 400, 401), f"{status} {body}"
    assert "tokens" not in body or "error" in body
    assert "root:" not in body


def test_symlinks_in_the_folder_are_not_followed(served: Served, tmp_path: Path) -> None:
    """Whoever can write into the folder of artefacts cannot make the controller read more."""
    job_id, worker = taken(served)
    path = f"/api/jobs/{job_id}/artefacts/file"
    assert said(served.port, "PUT", path, worker, b"mine")[0] == 201
    secret = tmp_path / "secret"
    secret.write_text("4321")
    (blob,) = [p for p in served.folder.rglob(f"*{job_id}*/*") if p.is_file()]
    blob.unlink()
    blob.symlink_to(secret)
    status, _, body = said(served.port, "GET", path, served.headers)
    assert "4321" not in body
    assert status in (404, 503)
    assert said(served.port, "PUT", path, worker, b"anew")[0] == 201
    assert secret.read_text() == "4321"
    assert said(served.port, "GET", path, served.headers)[2] == "anew"


# Bodies


def bombs() -> dict[str, bytes]:
    zeros = b"0" * (20 * MIB)
    return {"gzip": gzip.compress(zeros), "deflate": zlib.compress(zeros), "br": b"\x00" * 99}


@pytest.mark.parametrize("packing", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x-unknown"])
def test_packed_bodies_are_not_unpacked(served: Served, packing: str) -> None:
    job_id, worker = taken(served)
    bomb = bombs().get(packing, gzip.compress(b"0" * MIB))
    before = served.memory()
    for method, path, headers in (
        ("POST", "/api/jobs", served.headers),
        ("POST", "/api/workers/register", served.headers),
        ("POST", "/api/workers/poll", worker),
        ("PUT", f"/api/jobs/{job_id}/artefacts/bomb", worker),
        ("POST", f"/api/jobs/{job_id}/logs?offset=0", worker),
        ("POST", "/api/queue/mail/put", served.headers),
    ):
        packed = {**headers, "Content-Encoding": packing, "Content-Type": "application/json"}
        status, _, body = said(served.port, method, path, packed, bomb)
        assert status in (400, 415), f"{method} {path}: {status} {body}"
    assert served.memory() - before < 15


def test_a_zip_is_kept_as_it_is(served: Served) -> None:
    job_id, worker = taken(served)
    bomb = bombs()["gzip"]
    path = f"/api/jobs/{job_id}/artefacts/bomb.gz"
    headers = {**worker, "Content-Type": "application/gzip"}
    assert said(served.port, "PUT", path, headers, bomb)[0] == 201
    kept = httpx.get(served.url + path, headers={**served.headers, "Accept-Encoding": "gzip"})
    assert kept.headers.get("content-encoding") is None
    assert hashlib.sha256(kept.content).digest() == hashlib.sha256(bomb).digest()


def test_a_client_that_goes_in_the_middle_is_no_failure_of_ours(served: Served) -> None:
    job_id, worker = taken(served)
    before = served.log().count("request_failed")
    for method, path, headers in (
        ("POST", "/api/jobs", served.headers),
        ("POST", "/api/workers/poll", worker),
        ("PUT", f"/api/jobs/{job_id}/artefacts/half", worker),
        ("POST", f"/api/jobs/{job_id}/logs?offset=0", worker),
        ("POST", "/api/queue/mail/put", served.headers),
    ):
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: 1000\r\n\r\nhalf"
        for _ in range(3):
            with dialled(served.port) as line:
                line.sendall(head.encode())
    assert said(served.port, "POST", f"/api/jobs/{job_id}/heartbeat", worker)[0] == 200
    assert served.ask("GET", f"/api/jobs/{job_id}/artefacts")["artefacts"] == []
    assert served.log().count("request_failed") == before


def test_bodies_that_are_too_large(served: Served) -> None:
    job_id, worker = taken(served)
    before = served.memory()
    for method, path, headers, limit in (
        ("POST", "/api/jobs", served.headers, MIB),
        ("POST", "/api/workers/poll", worker, MIB),
        ("POST", f"/api/jobs/{job_id}/logs?offset=0", worker, MIB),
        ("PUT", f"/api/jobs/{job_id}/artefacts/large", worker, MIB),
        ("POST", "/api/queue/mail/put", served.headers, 16 * MIB),
    ):
        # It says how much will come.
        declared = {**headers, "Content-Length": str(10**12)}
        status, _, body = said(served.port, method, path, declared, b"x")
        assert status == 413, f"{method} {path}: {status} {body}"
        # It does not.
        chunk = b"%x\r\n%s\r\n" % (MIB, b" " * MIB)
        lines = {**headers, "Transfer-Encoding": "chunked", "Host": "x"}
        head = f"{method} {path} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        with dialled(served.port) as line:
            status, _, body = answered(
                line, head.encode() + b"\r\n" + chunk * (limit // MIB + 2) + b"0\r\n\r\n"
            )
        assert status in (0, 413), f"{method} {path}: {status} {body}"
    assert served.memory() - before < 60
    assert served.ask("GET", f"/api/jobs/{job_id}/artefacts")["artefacts"] == []


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Content-Length: 5x\r\n",
        "Content-Length : 5\r\n",
        "X: a\nContent-Length: 0\r\n",
        "X: a\r\n folded\r\n",
        "X\x00: a\r\n",
        ": nothing\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    ],
)
def test_requests_that_two_servers_would_read_differently(served: Served, lines: str) -> None:
    """Smuggling needs a server that guesses; what is not clear is refused, or ends there."""
    smuggled = b"0\r\n\r\nGET /api/tokens HTTP/1.1\r\nHost: x\r\n\r\n"
    head = f"POST /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n"
    with dialled(served.port) as line:
        status, _, body = answered(line, head.encode("latin-1") + smuggled)
    assert status in (0, 400, 405, 413), f"{status} {body}"
    assert "401" not in body, "the second request was taken as one"


# Heads


def test_heads_that_are_too_large(served: Served) -> None:
    before = served.memory()
    many = "".join(f"X{n}: 0123456789\r\n" for n in range(30_000))
    for head in (
        f"GET /livez HTTP/1.1\r\nHost: x\r\nX: {'a' * 5 * MIB}\r\n\r\n",
        f"GET /livez HTTP/1.1\r\nHost: x\r\n{many}\r\n",
        f"GET /{'a' * 5 * MIB} HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /livez HTTP/1.1\r\n" + "Y" * 5 * MIB,
    ):
        with dialled(served.port) as line:
            status, _, _ = answered(line, head.encode())
        assert status in (0, 400, 404, 431), status
    assert served.memory() - before < 20
    for name in ("Authorization", "If-None-Match", "Range", "Content-Type", "Last-Event-ID"):
        large = {**served.headers, name: "Bearer " + "x" * 30_000}
        status, _, _ = said(served.port, "GET", f"/api/jobs/{ID}/logs", large)
        assert status in (400, 401, 404), name


def test_a_head_of_a_few_kilobytes_is_fine(served: Served) -> None:
    headers = {**served.headers, "Cookie": "c=" + "x" * 30_000}
    assert said(served.port, "GET", "/api/stats", headers)[0] == 200


# Forgery


def test_no_line_is_forged_in_answers_and_logs(served: Served) -> None:
    evil = "x\r\nX-Forged: 1\r\n\r\n\x1b[2J\x07\u202e"
    job_id, worker = taken(served, payload=evil)
    quoted = "%0d%0aX-Forged:%201%0d%0a%0d%0a%1b[2J"
    for path in (
        f"/api/jobs/{quoted}",
        f"/api/jobs?state={quoted}",
        f"/api/jobs?kind={quoted}",
        f"/api/workers/{quoted}",
        f"/api/workers/poll?worker_id={quoted}",
        f"/api/jobs/{job_id}/artefacts/{quoted}",
        f"/api/queue/{quoted}/stats",
    ):
        status, head, _ = said(served.port, "GET", path, served.headers)
        assert status in (400, 404, 422), f"{path}: {status}"
        assert "forged" not in head.lower()
    for name in (evil, "a\u2028b", "a\x85b"):
        body = json.dumps({"name": name}).encode()
        assert said(served.port, "POST", "/api/workers/register", served.headers, body)[0] == 422
    for name in ("X-Checksum-SHA256", "Content-Type"):
        headers = {**worker, name: "text/html\x0bX-Forged: 1"}
        said(served.port, "PUT", f"/api/jobs/{job_id}/artefacts/a", headers, b"<script>")
    status, head, _ = said(served.port, "GET", f"/api/jobs/{job_id}/artefacts/a", served.headers)
    if status == 200:
        assert "forged" not in head.lower()
        assert "content-type: application/octet-stream" in head.lower()
        assert "attachment" in head
    log = served.log()
    assert "\x1b" not in log
    assert not [line for line in log.splitlines() if line.startswith("X-Forged")]


def test_a_log_is_kept_as_it_is_and_never_as_a_page(served: Served) -> None:
    job_id, worker = taken(served)
    evil = b"<script>alert(1)</script>\x1b[2J\r\nevent: end\r\ndata: forged\n\n"
    path = f"/api/jobs/{job_id}/logs"
    assert said(served.port, "POST", f"{path}?offset=0", worker, evil)[0] == 200
    answer = httpx.get(served.url + path, headers=served.headers)
    assert answer.content == evil
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    finish = {"max": 0, "finished": [{"job_id": job_id, "state": "done"}]}
    me = re.search(r"worker_id.: .(\w{32})", json.dumps(served.job(job_id)))
    assert me is not None
    said(
        served.port, "POST", "/api/workers/poll", worker,
        json.dumps({"worker_id": me[1], **finish}).encode(),
    )  # fmt: skip
    followed = httpx.get(f"{served.url}{path}?follow=true", headers=served.headers, timeout=20)
    ends = [line for line in followed.text.splitlines() if line.startswith("event: end")]
    assert len(ends) == 1, "a log cannot forge the events that carry it"


# Tokens


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "api_key", "bearer"])
def test_a_token_in_the_url_is_none(served: Served, name: str) -> None:
    secret = served.headers["Authorization"].removeprefix("Bearer ")
    worker = served.register()
    for path in ("/api/jobs", "/api/stats", f"/api/workers/poll?worker_id={worker['id']}"):
        mark = "&" if "?" in path else "?"
        status, _, body = said(served.port, "GET", f"{path}{mark}{name}={secret}")
        assert status == 401, path
        assert secret not in body
    cookie = {"Cookie": f"{name}={secret}", "X-Api-Key": secret}
    assert said(served.port, "GET", "/api/stats", cookie)[0] == 401
    assert secret not in served.log()


def test_no_webs_page_may_read(served: Served) -> None:
    """A browser lets a page of another origin read only what the server offers to it."""
    for method in ("GET", "OPTIONS"):
        headers = {
            **served.headers,
            "Origin": "http://evil",
            "Access-Control-Request-Method": "GET",
        }
        _, head, _ = said(served.port, method, "/api/jobs", headers)
        assert "access-control-allow" not in head.lower()


def compared_with(module: ModuleType) -> set[str]:
    """Where something secret is compared byte by byte, which takes longer the more is right."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            text = ast.unparse(node)
            if re.search(r"digest|token_hash|\.hash\b|secret", text):
                found.add(text)
    return found


def test_tokens_are_compared_in_constant_time() -> None:
    for module in (auth, poll_route):
        assert "hmac.compare_digest(" in inspect.getsource(module)
    for module in (auth, poll_route, tokens):
        assert compared_with(module) == set()


# Proxies


def test_forwarded_headers_of_a_stranger_are_not_believed(served: Served) -> None:
    forged = {
        **served.headers,
        "X-Forwarded-For": "6.6.6.6",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "evil",
        "X-Real-IP": "6.6.6.6",
        "Forwarded": "for=6.6.6.6",
    }
    body = b'{"name": "forger"}'
    status, head, text = said(served.port, "POST", "/api/workers/register", forged, body)
    assert status == 201
    assert "evil" not in head + text
    entry = served.ask("GET", "/api/audit")["entries"][0]
    assert entry["address"] == "127.0.0.1"
    assert "6.6.6.6" not in json.dumps(served.ask("GET", "/api/workers?limit=1000"))


def test_forwarded_headers_of_a_trusted_proxy_are_believed(servers: Servers) -> None:
    trusting = servers.begin(Served(servers, "--trusted-proxy", "127.0.0.0/8"), {})
    forwarded = {**trusting.headers, "X-Forwarded-For": "6.6.6.6, 203.0.113.9, 127.0.0.1"}
    body = b'{"name": "behind"}'
    assert said(trusting.port, "POST", "/api/workers/register", forwarded, body)[0] == 201
    address = trusting.ask("GET", "/api/audit")["entries"][0]["address"]
    assert address == "203.0.113.9", "the last that is no proxy of ours; before it anybody wrote"
    strange = {**trusting.headers, "X-Forwarded-For": "x\x1b[2J" * 50}
    said(trusting.port, "POST", "/api/workers/register", strange, body)
    address = trusting.ask("GET", "/api/audit")["entries"][0]["address"]
    assert "\x1b" not in address
    trusting.close()
    distant = servers.begin(Served(servers, "--trusted-proxy", "10.0.0.0/8"), {})
    forwarded = {**distant.headers, "X-Forwarded-For": "6.6.6.6"}
    assert said(distant.port, "POST", "/api/workers/register", forwarded, body)[0] == 201
    assert distant.ask("GET", "/api/audit")["entries"][0]["address"] == "127.0.0.1"
    distant.close()


# Workers


def test_a_worker_cannot_reach_what_is_anothers(served: Served) -> None:
    files = {"job": (None, '{"kind": "theirs", "payload": "hush"}'), "f": ("in.txt", b"hush")}
    job_id = served.ask("POST", "/api/jobs", files=files)["id"]
    theirs, mine = served.register(kinds=["theirs"]), served.register(kinds=["mine"])
    own = {"Authorization": theirs["Authorization"]}
    poll = f"/api/workers/poll?worker_id={theirs['id']}"
    assert code_or_job(said(served.port, "GET", poll, own)[2]) == job_id
    path = f"/api/jobs/{job_id}"
    assert said(served.port, "POST", f"{path}/logs?offset=0", own, b"hush")[0] == 200
    assert said(served.port, "PUT", f"{path}/artefacts/out.txt", own, b"hush")[0] == 201
    me = {"Authorization": mine["Authorization"]}
    stolen = json.dumps(
        {"worker_id": mine["id"], "finished": [{"job_id": job_id, "state": "done"}]}
    ).encode()
    for method, sub, body in (
        ("GET", path, b""),
        ("GET", f"{path}/result", b""),
        ("GET", f"{path}/logs", b""),
        ("GET", f"{path}/logs?follow=true", b""),
        ("GET", f"{path}/artefacts", b""),
        ("GET", f"{path}/artefacts/out.txt", b""),
        ("HEAD", f"{path}/artefacts/out.txt", b""),
        ("GET", f"{path}/inputs", b""),
        ("GET", f"{path}/inputs/in.txt", b""),
        ("HEAD", f"{path}/inputs/in.txt", b""),
        ("GET", poll, b""),
        ("GET", f"/api/workers/{theirs['id']}", b""),
        ("POST", f"/api/workers/{theirs['id']}/unregister", b""),
        ("POST", f"/api/workers/{theirs['id']}/drain", b"{}"),
    ):
        status, _, text = said(served.port, method, sub, me, body)
        assert status == 404, f"{method} {sub}: {status} {text}"
        assert "hush" not in text
    for method, sub, body in (
        ("POST", f"{path}/logs?offset=4", b"forged"),
        ("PUT", f"{path}/artefacts/out.txt", b"forged"),
        ("POST", f"{path}/heartbeat", b"{}"),
    ):
        text = said(served.port, method, sub, me, body)[2]
        assert code_of(text) == "lease_lost", f"{method} {sub}"
    for method, sub in (
        ("POST", f"{path}/cancel"), ("POST", f"{path}/retry"), ("GET", "/api/stats"),
        ("GET", "/api/workers"), ("GET", "/api/tokens"), ("POST", "/api/jobs"),
        ("GET", "/metrics"), ("GET", "/api/audit"), ("POST", "/api/workers/register"),
        ("POST", "/api/queue/mail/put"), ("POST", "/api/queue/mail/claim"),
        ("GET", "/api/queue/agents/jobs"),
    ):  # fmt: skip
        assert said(served.port, method, sub, me)[0] == 403, f"{method} {sub}"
    told = json.loads(said(served.port, "POST", "/api/workers/poll", me, stolen)[2])
    assert told["lost"] == [job_id]
    assert served.job(job_id)["state"] == "leased"
    listed = json.loads(said(served.port, "GET", "/api/jobs", me)[2])
    assert listed["jobs"] == []
    assert said(served.port, "GET", f"{path}/inputs/in.txt", own)[2] == "hush"
    log = httpx.get(f"{served.url}{path}/logs", headers=served.headers)
    assert log.text == "hush"


def code_or_job(body: str) -> str:
    told = json.loads(body)
    return str(told["job"]["id"]) if told.get("job") else code_of(body)


def test_the_controllers_own_queue_is_not_served_raw(served: Served) -> None:
    for method, path in (
        ("POST", "/api/queue/agents/put"),
        ("POST", "/api/queue/agents/claim"),
        ("POST", "/api/queue/%61gents/claim"),
        ("GET", "/api/queue/agents/jobs"),
        ("POST", "/api/queue/agents/drop"),
    ):
        sent = b"{}" if method == "POST" else b""
        status, _, body = said(served.port, method, path, served.headers, sent)
        assert (status, code_of(body)) == (403, "controllers_own"), f"{method} {path}"


# Disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", mib=2) as folder:
        yield folder


def test_a_full_disk_under_uploads(servers: Servers, small_disk: Path) -> None:
    server = servers.begin(Served(servers, "--artefacts", small_disk / "a", min_interval="0s"), {})
    job_id, worker = taken(server)
    path = f"/api/jobs/{job_id}/artefacts"
    assert said(server.port, "PUT", f"{path}/kept", worker, b"k" * 1000)[0] == 201
    status, _, body = said(server.port, "PUT", f"{path}/large", worker, b"x" * 3 * MIB)
    assert (status, code_of(body)) == (507, "no_room")
    status, _, body = said(server.port, "PUT", f"{path}/kept", worker, b"y" * 3 * MIB)
    assert (status, code_of(body)) == (507, "no_room")
    listed = server.ask("GET", path)["artefacts"]
    assert [(each["name"], each["size"]) for each in listed] == [("kept", 1000)]
    assert said(server.port, "GET", f"{path}/kept", server.headers)[2] == "k" * 1000
    # A job that brings files that do not fit is no job.
    files: Any = {"job": (None, '{"kind": "large"}'), "f": ("in.bin", b"x" * 3 * MIB)}
    refused = httpx.post(f"{server.url}/api/jobs", headers=server.headers, files=files)
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "no_room")
    large = server.ask("GET", "/api/jobs?kind=large")["jobs"]
    assert not [job for job in large if job["state"] in ("ready", "leased")]
    # All else goes on, and what was half written is gone.
    assert server.ask("GET", "/readyz") == {"status": "ok"}
    assert said(server.port, "POST", f"/api/jobs/{job_id}/heartbeat", worker, b"{}")[0] == 200
    assert said(server.port, "PUT", f"{path}/later", worker, b"z" * MIB)[0] == 201
    server.close()
