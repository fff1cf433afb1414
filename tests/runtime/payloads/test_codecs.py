"""Codecs: what they encode comes back, and whatever is changed on the way is noticed."""

from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.codecs import AesGcm, Codec, CodecChain, CodecContext, Key, Keys, Zlib
from pollwise.errors import CodecError, ConfigError, KeyMissing, PayloadError
from pollwise.runtime.decoding import same_payload
from pollwise.runtime.payloads import encryption
from pollwise.runtime.payloads.envelope import shown
from pollwise.runtime.payloads.envelope_fields import CODEC_NAMES, is_envelope

OLD, NEW = Key("old", bytes(32)), Key("new", bytes(range(32)))
PLACE = CodecContext("payload", "queue mail", "greet")
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    plain | text, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=20
)


def aes(*keys: Key) -> AesGcm:
    return AesGcm(Keys(keys or (OLD, NEW)))


CHAINS = {
    "zlib": CodecChain(Zlib()),
    "aes-gcm": CodecChain(aes()),
    "zlib+aes-gcm": CodecChain([Zlib(), aes()]),
    "aes-gcm+zlib": CodecChain([aes(), Zlib()]),
}
chains = st.sampled_from(list(CHAINS.values()))


def opened(chain: CodecChain, sealed: str, context: CodecContext = PLACE) -> Any:
    value = json.loads(sealed)
    return chain.open(value, context) if is_envelope(value) else value


@given(chains, values, st.booleans())
def test_what_is_sealed_is_opened(chain: CodecChain, value: Any, unique: bool) -> None:
    sealed = chain.seal(json.dumps(value), PLACE, unique=unique)
    assert opened(chain, sealed) == value


@given(st.sampled_from(["aes-gcm", "zlib+aes-gcm"]), values, st.booleans(), st.data())
def test_any_change_of_what_is_encrypted_is_noticed(
    name: str, value: Any, unique: bool, data: st.DataObject
) -> None:
    chain = CHAINS[name]
    sealed = chain.seal(json.dumps(value), PLACE, unique=unique).encode()
    place = data.draw(st.integers(0, len(sealed) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != sealed[place]))
    changed = sealed[:place] + bytes([other]) + sealed[place + 1 :]
    try:
        envelope = json.loads(changed)
    except ValueError:
        return  # a store's own check finds it: not JSON
    if envelope == json.loads(sealed) or not is_envelope(envelope):
        return  # `required` refuses what is no envelope
    with pytest.raises(CodecError):
        chain.open(envelope, PLACE)


@pytest.mark.parametrize("name", ["aes-gcm", "zlib+aes-gcm"])
@pytest.mark.parametrize(
    "elsewhere",
    [
        CodecContext("payload", "queue mail", "pay"),
        CodecContext("payload", "queue other", "greet"),
        CodecContext("payload", "outbox mail", "greet"),
        CodecContext("result", "queue mail", "greet", "7"),
    ],
    ids=str,
)
def test_what_is_moved_elsewhere_is_refused(name: str, elsewhere: CodecContext) -> None:
    sealed = CHAINS[name].seal('{"to":"x"}', PLACE)
    with pytest.raises(CodecError, match=r"changed since it was encrypted, or moved here"):
        opened(CHAINS[name], sealed, elsewhere)


def test_the_newest_key_encrypts_and_old_ones_decrypt() -> None:
    before, both, after = (CodecChain(aes(*keys)) for keys in ((OLD,), (OLD, NEW), (NEW,)))
    from_before, from_both = before.seal("1", PLACE), both.seal("2", PLACE)
    assert (opened(both, from_before), opened(both, from_both)) == (1, 2)
    assert opened(after, from_both) == 2
    with pytest.raises(KeyMissing, match="the key 'old', which is not in the program; add it"):
        opened(after, from_before)
    waiting = CodecChain(aes(OLD, Key("new", NEW.secret, decrypt_only=True)))
    assert opened(before, waiting.seal("3", PLACE)) == 3
    assert opened(waiting, from_both) == 2
    with pytest.raises(CodecError, match="a different key under the id 'old'"):
        opened(CodecChain(aes(Key("old", bytes(31) + b"x"))), from_before)


def test_the_same_payload_never_looks_the_same() -> None:
    chain = CHAINS["aes-gcm"]
    sealed = {json.loads(chain.seal('{"a":1}', PLACE))["data"] for _ in range(100)}
    assert len(sealed) == 100


@given(st.sampled_from(list(CHAINS)), values, values)
def test_a_repeat_of_a_unique_is_seen_without_a_key(name: str, one: Any, other: Any) -> None:
    chain = CHAINS[name]
    first, second = (chain.seal(json.dumps(one), PLACE, unique=True) for _ in range(2))
    assert same_payload(first, second)
    third = chain.seal(json.dumps(other), PLACE, unique=True)
    canonical = [json.dumps(each, sort_keys=True) for each in (one, other)]
    assert same_payload(first, third) == (canonical[0] == canonical[1])


def test_a_repeat_is_seen_while_keys_are_replaced() -> None:
    before, both, after = (CodecChain(aes(*keys)) for keys in ((OLD,), (OLD, NEW), (NEW,)))
    payload = '{"b":1,"a":2}'
    first = before.seal(payload, PLACE, unique=True)
    assert same_payload(first, both.seal('{"a":2,"b":1}', PLACE, unique=True))
    later = after.seal(payload, PLACE, unique=True)
    assert same_payload(both.seal(payload, PLACE, unique=True), later)
    assert not same_payload(first, later)
    other = CodecContext("payload", "queue mail", "pay")
    assert not same_payload(first, before.seal(payload, other, unique=True))
    assert not same_payload(first, before.seal(payload, PLACE)), "without fingerprints"
    assert payload not in first


def test_fingerprints_do_not_tell_the_payload() -> None:
    sealed = [CodecChain(aes(key)).seal("7", PLACE, unique=True) for key in (OLD, NEW)]
    one, other = (json.loads(each)["same"] for each in sealed)
    assert [*one] == ["old"]
    assert one["old"] != other["new"], "a fingerprint needs the key"


def test_compression_keeps_what_does_not_get_smaller() -> None:
    chain = CHAINS["zlib"]
    assert chain.seal('{"a":1}', PLACE) == '{"a":1}'
    long = json.dumps(["the same words"] * 1000)
    assert len(chain.seal(long, PLACE)) < len(long) / 20
    lookalike = json.dumps({CODEC_NAMES: "zlib", "data": "x"})
    assert opened(chain, chain.seal(lookalike, PLACE)) == {CODEC_NAMES: "zlib", "data": "x"}


def test_a_bomb_is_not_decompressed() -> None:
    chain = CodecChain(Zlib(max_bytes=1000))
    with pytest.raises(PayloadError, match="1002 bytes before it is compressed; the limit of Zlib"):
        chain.seal(json.dumps("x" * 1000), PLACE)
    bomb = b"\1" + zlib.compress(b"0" * 50_000_000)
    with pytest.raises(CodecError, match="more than 1000 bytes when decompressed"):
        chain.open({CODEC_NAMES: "zlib", "data": base64.b64encode(bomb).decode()}, PLACE)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\2x", "not what Zlib wrote"),
        (b"\1x", "cannot be decompressed"),
        (b"\1" + zlib.compress(b"1")[:-1], "its end is missing"),
        (b"\1" + zlib.compress(b"1") + b"2", "or more follows"),
        (b"\0nonsense", "what it decodes to is not JSON"),
        (b"\0\xff", "what it decodes to is not JSON"),
        (b"\0" + b"[" * 100_000, "what it decodes to is not JSON"),
    ],
)
def test_damage_is_told(data: bytes, why: str) -> None:
    envelope = {CODEC_NAMES: "zlib", "data": base64.b64encode(data).decode()}
    with pytest.raises(CodecError, match=why):
        CHAINS["zlib"].open(envelope, PLACE)


@pytest.mark.parametrize("data", [None, 7, "", "?", "QQ", "QR==", []])
def test_a_damaged_envelope_is_told(data: Any) -> None:
    envelope = {CODEC_NAMES: "aes-gcm", "data": data}
    with pytest.raises(CodecError, match="its envelope is damaged"):
        CHAINS["aes-gcm"].open(envelope, PLACE)
    assert shown(envelope) == "<encoded, damaged>"


def test_unknown_codecs_are_a_missing_key() -> None:
    for names in ("gzip", "zlib+", "+".join(["aes-gcm"] * 9)):
        with pytest.raises(KeyMissing, match="but this process has zlib"):
            CHAINS["zlib"].open({CODEC_NAMES: names, "data": "AAAA"}, PLACE)


def test_what_people_see() -> None:
    sealed = json.loads(CHAINS["zlib+aes-gcm"].seal('{"a":1}', PLACE))
    size = len(base64.b64decode(sealed["data"]))
    assert shown(sealed) == f"<encrypted, key id new, {size} bytes>"
    assert shown({CODEC_NAMES: "zlib", "data": "AAAA"}) == "<encoded with zlib, 3 bytes>"
    assert shown({CODEC_NAMES: "own", "data": "AAAA"}) == "<encoded with own, 3 bytes>"
    hostile = base64.b64encode(b"\1\3\x1b[m" + bytes(40)).decode()
    assert shown({CODEC_NAMES: "aes-gcm", "data": hostile}) == "<encoded with aes-gcm, 45 bytes>"
    assert shown({"a": 1}) == {"a": 1}
    assert "AAAA" not in repr(NEW) + repr(Keys((NEW,))) + repr(aes())


class Reversed(Codec):
    """What a user may write: encodes without keys."""

    name = "reversed"

    def encode(self, data: bytes, context: CodecContext) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, context: CodecContext) -> bytes:
        return data[::-1]


def test_a_codec_of_ones_own() -> None:
    chain = CodecChain([Reversed(), Zlib()])
    assert opened(chain, chain.seal('"abc"', PLACE)) == "abc"
    assert json.loads(chain.seal("1", PLACE, unique=True))["same"] == {}, "it may be a secret"


def test_codecs_that_do_not_fit_are_refused() -> None:
    wrong: Any
    for wrong in ("zlib", 7, [Zlib(), "x"]):
        with pytest.raises(ConfigError, match="must be a Codec, such as Zlib"):
            CodecChain(wrong)
    for wrong in ([], [Zlib(), Zlib()]):
        with pytest.raises(ConfigError, match="with different names"):
            CodecChain(wrong)
    with pytest.raises(ConfigError, match="required = True, but zlib encrypts nothing"):
        CodecChain(Zlib(), required=True)
    bad = Reversed()
    bad.name = "a+b"  # type: ignore[misc]
    with pytest.raises(ConfigError, match="must have 1 to 20 letters"):
        CodecChain(bad)
    for level in (0, 10, True, 1.5):
        with pytest.raises(ConfigError, match="level"):
            Zlib(level)  # type: ignore[arg-type]


# Keys


def write(path: Path, content: str, mode: int = 0o600) -> Path:
    path.write_text(content, "utf-8")
    path.chmod(mode)
    return path


def test_keys_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = Keys((OLD, Key("next", NEW.secret, decrypt_only=True)))
    keys.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    read = Keys.from_file(path)
    assert read.keys == keys.keys
    assert read.newest == OLD
    assert read.used("next").newest.id == "next"
    assert read.with_key(Key.new()).newest.id not in ("old", "next")
    with pytest.raises(ConfigError, match="has no key 'x'; it has old, next"):
        read.used("x")
    one = f"# keys\n\n{OLD.line()}  # the first\n"
    assert Keys.from_file(write(path, one)).keys == (OLD,)
    variable = {"POLLWISE_KEYS": f"{OLD.line()},{NEW.line()};"}
    assert Keys.from_environment(environ=variable).newest == NEW
    with pytest.raises(ConfigError, match="POLLWISE_KEYS has no key"):
        Keys.from_environment(environ={})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o601])
def test_a_key_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "keys", OLD.line(), mode)
    with pytest.raises(ConfigError, match=rf"has the mode {mode:04o}, .*run `chmod 600"):
        Keys.from_file(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "has no key that may encrypt"),
        (f"{OLD.line()} decrypt-only", "has no key that may encrypt"),
        (f"{OLD.line()}\n{OLD.line()}", "two keys in .* have the id old"),
        ("SECRET", "line 1 of the key file .* must be an id and a key in base64"),
        (f"\n{OLD.line()} SECRET", "line 2 of"),
        ("id SECRET*", "the key in line 1 of .* is not base64"),
        ("id SECRET==", "a key of 32 bytes in base64"),
        (f"SECRET/ {OLD.line().split()[1]}", "must be an id of letters"),
        ("\n".join(f"k{n} {OLD.line().split()[1]}" for n in range(101)), "101 keys; at most 100"),
        ("x" * 70_000, "more than 65536 bytes"),
        ("schlüssel", "is not text"),
    ],
)
def test_a_wrong_key_file_is_told_without_the_keys(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as told:
        Keys.from_file(write(tmp_path / "keys", content))
    assert "SECRET" not in str(told.value)
    assert OLD.line().split()[1] not in str(told.value)


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys", 0o600)
    with pytest.raises(ConfigError, match="is not a file"):
        Keys.from_file(tmp_path / "keys")


def test_a_key_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        AesGcm(tmp_path / "keys")
    with pytest.raises(ConfigError, match=r"cannot be read|is not a file"):
        AesGcm(tmp_path)
    if os.path.exists("/dev/null"):  # noqa: PTH110
        with pytest.raises(ConfigError, match="is not a file"):
            AesGcm("/dev/null")
    with pytest.raises(ConfigError, match="keys must be Keys, or the path"):
        AesGcm(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must have 32 bytes"):
        Key("short", b"16 bytes or so..")


def test_a_new_key_in_the_file_needs_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    Keys((OLD,)).save(path)
    running = CodecChain(AesGcm(path))
    sealed = CHAINS["aes-gcm"].seal("1", PLACE)
    with pytest.raises(KeyMissing, match="the key 'new', which is not in the key file"):
        opened(running, sealed)
    Keys((OLD, NEW)).save(path)
    with pytest.raises(KeyMissing):  # it was read a moment ago
        opened(running, sealed)
    monkeypatch.setattr(encryption, "READ_AGAIN_AFTER", 0.0)
    assert opened(running, sealed) == 1
    assert json.loads(running.seal("1", PLACE)) != json.loads(sealed)
    assert shown(json.loads(running.seal("1", PLACE))).startswith("<encrypted, key id new")
    path.chmod(0o644)
    with pytest.raises(KeyMissing, match="has the mode 0644"):
        opened(running, CodecChain(aes(Key("third", bytes(32)))).seal("1", PLACE))
