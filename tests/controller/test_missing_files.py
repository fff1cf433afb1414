"""What is taken away under a running controller: its database file, the folder of its artefacts."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx
import pytest

from pollwise.controller import Controller
from tests.controller.farm import URL, Farm, virtually_on_farm


async def refused(farm: Farm, method: str, path: str, status: int, **given: Any) -> str:
    error = (await farm.call(method, path, status, **given))["error"]
    return str(error["message"])


@pytest.mark.parametrize("store", ["one file", "sqlite"])
def test_a_database_that_was_removed_takes_no_jobs(
    tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    database, aside = tmp_path / "jobs.db", tmp_path / "aside.db"

    async def main(farm: Farm) -> None:
        job = await farm.put()
        await farm.call("POST", f"/api/jobs/{job['id']}/cancel")
        database.rename(aside)  # still open, as a file is that was removed
        await asyncio.sleep(1)
        gone = "the database file is gone"
        with caplog.at_level(logging.WARNING, logger="pollwise"):
            for _ in range(3):
                assert await refused(farm, "POST", "/api/jobs", 503, json={"kind": "a"}) == gone
                error = (await farm.call("POST", "/api/jobs", 503, json={"kind": "a"}))["error"]
                assert error["what_to_do"].startswith("Tell an admin")
                assert await refused(farm, "GET", "/readyz", 503) == gone
            path = f"/api/jobs/{job['id']}/retry"
            assert await refused(farm, "POST", path, 503) == gone
        told = [each for each in caplog.messages if str(database) in each]
        assert len(told) == 1, "it is said once"
        database.write_bytes(b"")
        another = "another file is in the place of the database"
        assert await refused(farm, "GET", "/readyz", 503) == another
        assert await refused(farm, "POST", "/api/jobs", 503, json={"kind": "a"}) == another
        aside.replace(database)
        await farm.call("GET", "/readyz")
        await farm.put()

    virtually_on_farm(main, tmp_path, store)


def test_a_raw_queue_whose_database_was_removed_takes_no_jobs(tmp_path: Path) -> None:
    asyncio.run(_put_to_what_was_removed(tmp_path))


async def _put_to_what_was_removed(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    controller = Controller(f"sqlite:///{database}")
    transport = httpx.ASGITransport(controller.app)
    async with controller, httpx.AsyncClient(transport=transport, base_url=URL) as http:
        _, secret = await controller.tokens.make("admin", "test")
        head = {"Authorization": f"Bearer {secret}"}
        body = {"jobs": [{"kind": "a", "payload": "1"}]}
        assert (await http.post("/api/queue/mail/put", json=body, headers=head)).is_success
        database.unlink()
        assert (await http.get("/readyz")).status_code == 503  # and so it was looked for
        answer = await http.post("/api/queue/mail/put", json=body, headers=head)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "the database file is gone"


def test_a_folder_for_artefacts_that_went_is_not_made_again(tmp_path: Path) -> None:
    folder, aside = tmp_path / "artefacts", tmp_path / "aside"

    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()
        path = f"/api/jobs/{job['id']}/artefacts/out.txt"
        put = await farm.http.put(path, content=b"made", headers=agent.headers)
        assert put.status_code == 201
        folder.rename(aside)
        gone = "the folder for artefacts is gone"
        answer = await farm.http.put(path, content=b"again", headers=agent.headers)
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, gone)
        assert await refused(farm, "GET", path, 503) == gone
        assert not folder.exists(), "it was there, so somebody took it away"
        assert await refused(farm, "GET", "/readyz", 503) == gone
        aside.rename(folder)
        assert (await farm.http.get(path, headers=farm.admin)).content == b"made"
        for each in folder.iterdir():
            shutil.rmtree(each)
        assert "are gone" in await refused(farm, "GET", path, 410)
        await farm.call("GET", "/readyz")

    virtually_on_farm(main, tmp_path)


def test_a_disk_for_artefacts_that_went_leaves_a_folder_that_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "artefacts"

    async def main(farm: Farm) -> None:
        job = await farm.put()
        agent = await farm.register()
        await agent.job()
        path = f"/api/jobs/{job['id']}/artefacts/out.txt"
        blobs: Any = farm.controller.artefacts.blobs
        blobs._disk += 1  # as if it had been seen on another, which is not mounted any more
        gone = "the disk with the folder for artefacts is gone"
        answer = await farm.http.put(path, content=b"made", headers=agent.headers)
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, gone)
        assert await refused(farm, "GET", "/readyz", 503) == gone
        assert not list(folder.iterdir())
        (folder / "ab").mkdir()  # mounted again, under another number: what was there is there
        await farm.call("GET", "/readyz")
        put = await farm.http.put(path, content=b"made", headers=agent.headers)
        assert put.status_code == 201

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize(
    ("number", "says"), [(errno.ENOSPC, "full"), (errno.EDQUOT, "full"), (errno.EROFS, "read-only")]
)
def test_a_disk_that_takes_no_more_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    async def main(farm: Farm) -> None:
        await farm.call("GET", "/readyz")
        for what, place in (("database", tmp_path), ("artefacts", tmp_path / "artefacts")):

            def full(*, dir: Path, place: Path = place, **_: object) -> Any:
                if dir == place:
                    raise OSError(number, os.strerror(number))
                return TemporaryFile(dir=dir)

            monkeypatch.setattr("pollwise.controller.missing_files.tempfile.TemporaryFile", full)
            told = await refused(farm, "GET", "/readyz", 503)
            assert told == f"the disk of the {what} is {says}"
        monkeypatch.undo()
        await farm.call("GET", "/readyz")

    virtually_on_farm(main, tmp_path, "sqlite")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this root cannot mount")
    try:
        asyncio.run(_fill(disk))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def _fill(disk: Path) -> None:
    controller = Controller(f"sqlite:///{disk}/jobs.db")
    transport = httpx.ASGITransport(controller.app)
    async with controller, httpx.AsyncClient(transport=transport, base_url=URL) as http:
        assert (await http.get("/readyz")).status_code == 200
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "the disk of the database is full"
        assert (await http.get("/livez")).status_code == 200
        ballast.unlink()
        assert (await http.get("/readyz")).status_code == 200
