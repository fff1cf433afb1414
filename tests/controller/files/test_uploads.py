"""Files over HTTP: inputs that come with a job, artefacts up and down."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest
from starlette.formparsers import MultiPartParser

from tests.controller.farm import Agent, Farm, virtually_on_farm


def test_inputs_come_with_the_job(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        files = [
            ("job", (None, '{"kind": "build", "payload": 7}')),
            ("source", ("src/main.c", b"int main;" * 1000, "text/x-c")),
            ("more", ("data.bin", bytes(range(256)))),
        ]
        job = await farm.call("POST", "/api/jobs", 201, files=files)
        assert job["inputs"] == ["data.bin", "src/main.c"]
        agent = await farm.register()
        work = await agent.job()
        assert work["inputs"] == ["data.bin", "src/main.c"]
        path = f"/api/jobs/{job['id']}/inputs/src/main.c"
        got = await farm.http.get(path, headers=agent.headers)
        assert got.content == b"int main;" * 1000
        assert got.headers["content-disposition"].startswith("attachment")
        listed = await farm.call("GET", f"/api/jobs/{job['id']}/inputs")
        assert [each["name"] for each in listed["artefacts"]] == ["data.bin", "src/main.c"]
        other = await farm.register()
        assert (await farm.http.get(path, headers=other.headers)).status_code == 404

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        [("source", ("a.txt", b"x"))],
        [("job", (None, "{"))],
        [("job", (None, '{"kind": ""}')), ("f", ("a.txt", b"x"))],
        [("job", (None, '{"kind": "a"}')), ("f", ("../etc/passwd", b"x"))],
        [("job", (None, '{"kind": "a"}')), ("f", ("/etc/passwd", b"x"))],
        [("job", (None, '{"kind": "a"}')), ("f", ("a", b"x")), ("g", ("a", b"y"))],
        [("job", (None, '{"kind": "a"}')), ("note", (None, "no file"))],
        [("job", (None, '{"kind": "a"}')), *((f"f{n}", (f"{n}", b"x")) for n in range(4))],
    ],
    ids=["no job", "no JSON", "bad job", "parent", "absolute", "twice", "no file", "too many"],
)
def test_a_bad_submission_leaves_nothing(tmp_path: Path, files: Any) -> None:
    async def main(farm: Farm) -> None:
        answer = await farm.http.post("/api/jobs", headers=farm.admin, files=files)
        assert answer.status_code in (400, 422), answer.text
        assert (await farm.call("GET", "/api/jobs"))["jobs"] == []
        assert not [p for p in tmp_path.rglob("*") if p.is_file() and "artefacts" in p.parts]

    virtually_on_farm(main, tmp_path, inputs_max=3)


def test_inputs_are_bounded(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        files: Any = [("job", (None, '{"kind": "build"}')), ("f", ("a.bin", b"x" * 4_000_000))]
        answer = await farm.http.post("/api/jobs", headers=farm.admin, files=files)
        assert answer.status_code == 413
        assert (await farm.call("GET", "/api/jobs"))["jobs"] == []

    virtually_on_farm(main, tmp_path, artefact_limit=1000)


def test_no_room_for_what_is_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(_: MultiPartParser) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main(farm: Farm) -> None:
        monkeypatch.setattr(MultiPartParser, "parse", full)
        files: Any = {"job": (None, '{"kind": "build"}'), "f": ("in.bin", b"x")}
        said = await farm.call("POST", "/api/jobs", 507, files=files)
        assert said["error"]["code"] == "no_room"
        assert (await farm.call("GET", "/api/jobs"))["jobs"] == []

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=x"])
def test_a_broken_multipart_is_refused(tmp_path: Path, kind: str) -> None:
    async def main(farm: Farm) -> None:
        headers = {**farm.admin, "Content-Type": kind}
        for body in (b"", b"nonsense", b"--x\r\n\r\n", b"--x\r\nContent-Disposition: x\r\n\r\n1"):
            answer = await farm.http.post("/api/jobs", headers=headers, content=body)
            assert answer.status_code in (400, 422), answer.text

    virtually_on_farm(main, tmp_path)


async def leased(farm: Farm) -> tuple[Agent, str]:
    agent = await farm.register()
    job = await farm.put()
    await agent.job()
    return agent, f"/api/jobs/{job['id']}/artefacts"


def test_artefacts_up_and_down(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent, path = await leased(farm)
        data = bytes(range(256)) * 4096
        digest = hashlib.sha256(data).hexdigest()
        headers = {**agent.headers, "X-Checksum-SHA256": digest, "Content-Type": "text/html"}
        put = await farm.http.put(f"{path}/out/app.bin", content=data, headers=headers)
        assert put.status_code == 201
        assert put.json()["sha256"] == digest
        listed = await farm.call("GET", path)
        assert put.json() == listed["artefacts"][0], "also when it was made"
        got = await farm.http.get(f"{path}/out/app.bin", headers=farm.admin)
        assert got.content == data
        assert got.headers["x-checksum-sha256"] == digest
        assert got.headers["content-security-policy"] == "sandbox"
        assert got.headers["x-content-type-options"] == "nosniff"
        head = await farm.http.head(f"{path}/out/app.bin", headers=farm.admin)
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(data)))
        ranged = {**farm.admin, "Range": "bytes=256-511"}
        part = await farm.http.get(f"{path}/out/app.bin", headers=ranged)
        assert (part.status_code, part.content) == (206, bytes(range(256)))
        ranged["Range"] = f"bytes={len(data)}-"
        beyond = await farm.http.get(f"{path}/out/app.bin", headers=ranged)
        assert beyond.status_code == 416
        same = {**farm.admin, "If-None-Match": got.headers["etag"]}
        assert (await farm.http.get(f"{path}/out/app.bin", headers=same)).status_code == 304
        listed = await farm.call("GET", path)
        assert [each["name"] for each in listed["artefacts"]] == ["out/app.bin"]

    virtually_on_farm(main, tmp_path)


def test_bad_artefacts_are_refused(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent, path = await leased(farm)

        async def put(name: str, content: bytes = b"x", headers: Any = None) -> int:
            answer = await farm.http.put(
                f"{path}/{name}", content=content, headers={**agent.headers, **(headers or {})}
            )
            return answer.status_code

        for name in ("%2e%2e/x", "a%2f..%2fb", "%2fetc/passwd", "a%00b", "a%0d%0ab", "x" * 256):
            assert await put(name) in (404, 422), name
        assert await put("a", b"x" * 2000) == 413
        assert await put("a", headers={"X-Checksum-SHA256": "0" * 64}) in (409, 422)
        assert await put("a", headers={"X-Checksum-SHA256": "nonsense"}) == 422
        assert await put("a", headers={"Content-Encoding": "gzip"}) == 415
        assert (await farm.call("GET", path))["artefacts"] == []
        putter = await farm.token("put")
        forbidden = await farm.http.put(f"{path}/a", content=b"x", headers=putter)
        assert forbidden.status_code == 403

    virtually_on_farm(main, tmp_path, artefact_limit=1000)


def test_logs_by_offset(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent, path = await leased(farm)
        path = path.replace("artefacts", "logs")

        async def write(offset: Any, text: bytes) -> Any:
            url = f"{path}?offset={offset}"
            return await farm.http.post(url, content=text, headers=agent.headers)

        assert (await write(0, b"one\n")).json() == {"received": 4, "size": 4, "cut": False}
        assert (await write(0, b"one\n")).json()["size"] == 4
        assert (await write(2, b"e\ntwo\n")).json()["size"] == 8
        gap = await write(100, b"x")
        assert (gap.status_code, gap.headers["x-log-offset"]) == (409, "8")
        for wrong in (-1, "x", ""):
            assert (await write(wrong, b"x")).status_code == 422
        assert (await write(8, b"x" * 2_000_000)).status_code == 413
        got = await farm.http.get(path, headers=farm.admin)
        assert got.text == "one\ntwo\n"
        assert got.headers["content-type"].startswith("text/plain")
        tail = await farm.http.get(path, headers={**farm.admin, "Range": "bytes=-4"})
        assert (tail.status_code, tail.text) == (206, "two\n")

    virtually_on_farm(main, tmp_path)
