"""`pollwise keys …`, the settings of codecs, and what commands show of encrypted payloads."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from pollwise.codecs import AesGcm, Key, Keys
from pollwise.controller.opening import check_queue
from pollwise.errors import ConfigError
from pollwise.outbox import NewRecord, open_store
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import Settlement
from pollwise.settings import load
from pollwise.settings.codecs import codec_of
from tests.cli.console import good, pollwise

URL = "sqlite:///jobs.db?keep=1h"
CARD = "4111-1111"


def test_keys_are_made_listed_and_used() -> None:
    first = good("keys", "new", "keys").out.strip()
    assert Path("keys").stat().st_mode & 0o777 == 0o600
    second = good("keys", "new", "keys", "--decrypt-only", "--json").json()["id"]
    secret = Keys.from_file("keys").newest.line().split()[1]
    listed = good("keys", "list", "keys")
    assert f"{first}  encrypts" in listed.out
    assert f"{second}  decrypts" in listed.out
    assert secret not in listed.out
    assert good("keys", "use", "keys", first, "--json").json() == {"id": first}
    assert good("keys", "use", "keys", second).out == f"{second} encrypts now\n"
    assert good("keys", "list", "keys", "--json").json() == [
        {"id": first, "encrypts": False},
        {"id": second, "encrypts": True},
    ]
    third = good("keys", "new", "keys").out.strip()
    assert Keys.from_file("keys").newest.id == third
    Path("keys").chmod(0o644)
    for words in (["list", "keys"], ["new", "keys"], ["use", "keys", first]):
        told = pollwise("keys", *words)
        assert told.code == 2
        assert "run `chmod 600 keys`" in told.err
    assert len(Path("keys").read_text().splitlines()) == 3


def test_the_commands_show_no_payload() -> None:
    key = good("keys", "new", "keys").out.strip()
    toml = '[codec]\npayloads = "zlib+aes-gcm"\nkey_file = "keys"\n'
    Path("pollwise.toml").write_text(toml)
    [first, second] = [
        good("queue", "put", URL, "pay", json.dumps({"card": CARD}), "--unique", "u").out
        for _ in range(2)
    ]
    assert first == second

    async def finish() -> None:
        async with open_queue(URL, codec=AesGcm("keys")) as queue:
            [claim] = await queue.claim("w", 1, "1m")
            assert claim.job.locked is not None, "zlib is not in this chain"
            queue.use_codec(codec_of(load()))
            await queue.settle([Settlement.done(claim, {"card": CARD})])

    asyncio.run(finish())
    for words in (["show", URL, "1"], ["list", URL]):
        for more in ([], ["--json"]):
            out = good("queue", *words, *more).out
            assert f"<encrypted, key id {key}, " in out
            assert CARD not in out
            assert "~codec" not in out
    shown = good("queue", "show", URL, "1", "--json").json()
    assert shown["result"].startswith(f"<encrypted, key id {key}, ")
    refused = pollwise("queue", "result", URL, "1")
    assert (refused.code, refused.out) == (2, "")
    assert "the result of job 1 is encoded, and commands do not decode it" in refused.err
    stored = sqlite3.connect("jobs.db")
    assert CARD not in repr(stored.execute("SELECT * FROM pollwise_jobs").fetchall())
    stored.close()

    async def put_record() -> None:
        async with open_store("sqlite:///jobs.db", codec=AesGcm("keys")) as store:
            await store.migrate()
            await store.put(NewRecord("pay", {"card": CARD}, "k"))

    asyncio.run(put_record())
    for more in ([], ["--json"]):
        out = good("outbox", "show", "sqlite:///jobs.db", "1", *more).out
        assert f"<encrypted, key id {key}, " in out.replace("\n", " ")
        assert CARD not in out


def test_a_controller_takes_no_codec() -> None:
    queue = open_queue(URL, codec=AesGcm(Keys((Key("k1", bytes(32)),))))
    with pytest.raises(ConfigError, match="a controller passes payloads on as they are"):
        check_queue(queue)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"key_file": "keys"}, "codec.key_file is set, but codec.payloads is none"),
        ({"payloads": "zlib", "required": True}, "codec.required is set, but .* without aes-gcm"),
        ({"payloads": "aes-gcm", "max_bytes": 9}, "codec.max_bytes is set, but .* without zlib"),
        ({"payloads": "aes-gcm"}, "there is no key; set codec.key_file or POLLWISE_KEYS"),
        ({"payloads": "aes-gcm", "key_file": "gone"}, "the key file gone cannot be read"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], says: str) -> None:
    given = load(overrides={f"codec.{key}": value for key, value in settings.items()})
    with pytest.raises(ConfigError, match=says):
        codec_of(given)


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Key("k1", bytes(32)).line()
    monkeypatch.setenv("POLLWISE_KEYS", line)
    monkeypatch.setenv("POLLWISE_CODEC_PAYLOADS", "aes-gcm")
    good("queue", "put", URL, "pay", json.dumps({"card": CARD}))
    assert "<encrypted, key id k1, " in good("queue", "list", URL).out
    assert line.split()[1] not in good("config", "show").out
    monkeypatch.setenv("POLLWISE_CODEC_KEY_FILE", "keys")
    told = pollwise("queue", "put", URL, "pay")
    assert "codec.key_file = 'keys', but POLLWISE_KEYS has keys too; keep one" in told.err
    monkeypatch.setenv("POLLWISE_CODEC_PAYLOADS", "aes-gmc")
    assert "did you mean 'aes-gcm'?" in pollwise("queue", "put", URL, "pay").err


APP = """
from pollwise import Worker

worker = Worker("sqlite:///jobs.db?keep=1h")

@worker.handle("pay")
def pay(job):
    with open("got.txt", "w") as file:
        file.write(job.payload["card"])
"""


def test_a_worker_takes_its_codec_from_the_settings() -> None:
    good("keys", "new", "keys")
    toml = '[codec]\npayloads = "aes-gcm"\nkey_file = "keys"\nrequired = true\n'
    Path("pollwise.toml").write_text(toml)
    Path("paying.py").write_text(APP)
    good("queue", "put", URL, "pay", json.dumps({"card": CARD}))
    checked = good("doctor").out
    assert "payloads encoded by aes-gcm" in " ".join(checked.split())
    ran = good("worker", "paying:worker", "--once")
    assert Path("got.txt").read_text() == CARD
    assert CARD not in ran.out + ran.err
