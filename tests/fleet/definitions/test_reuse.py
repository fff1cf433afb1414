"""Large files: each target is parsed and checked once, and again only if it changed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet import Fleet
from pollwise.fleet.definitions import table
from pollwise.fleet.definitions.document import parse
from pollwise.fleet.engine import running_target
from pollwise.fleet.engine.running_target import unmade
from pollwise.fleet.file import FleetFileError, list_file, read
from pollwise.fleet.probes import make_probe

HEAD = '[group.shop]\ntype = "http"\ntimeout = "10s"\n'
PAGE = '\n[[target]]\nname = "page {0}"\ngroup = "shop"\nurl = "https://shop.example/{0}"\n'


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the targets whose probes are made, when definitions are read or polled."""
    names: list[str] = []

    def counted(target: Any) -> Any:
        names.append(target.name)
        return make_probe(target)

    monkeypatch.setattr(table, "make_probe", counted)
    monkeypatch.setattr(running_target, "make_probe", counted)
    return names


def written(folder: Path, pages: int = 20, head: str = HEAD) -> Path:
    path = folder / "fleet.toml"
    path.write_text(head + "".join(PAGE.format(number) for number in range(pages)))
    return path


def test_a_probe_is_made_once_when_its_definition_is_read_and_again_for_its_first_poll(
    tmp_path: Path, made: list[str]
) -> None:
    found = read(written(tmp_path))
    assert len(made) == 20
    fleet = Fleet()
    fleet.replace(found.targets, read=True)
    assert len(made) == 20
    entry = fleet._known("page 3")
    assert entry.probe is unmade
    entry.ensure_probe()
    assert (len(made), entry.host) == (21, "shop.example")


def test_one_changed_line_reads_one_target(tmp_path: Path, made: list[str]) -> None:
    path = written(tmp_path)
    before = read(path)
    fleet = Fleet()
    fleet.replace(before.targets, read=True)
    made.clear()
    path.write_text(path.read_text().replace('/7"', '/8"'))
    after = read(path, before=before)
    assert made == ["page 7"]
    kept = [one is other for one, other in zip(before.targets, after.targets, strict=True)]
    assert kept.count(False) == 1
    assert fleet.replace(after.targets, read=True).changed == ("page 7",)


def test_what_targets_inherit_or_use_makes_all_of_them_new(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "one of five")
    head = HEAD + 'headers = { X-Key = "${SHOP_KEY}" }\n'
    path = written(tmp_path, head=head)
    before = read(path)
    monkeypatch.setenv("SHOP_KEY", "two of five")
    made.clear()
    after = read(path, before=before)
    assert len(made) == 20
    assert after.targets[0].options["headers"] == {"X-Key": "two of five"}
    path.write_text(path.read_text().replace('"10s"', '"20s"'))
    assert {each.timeout for each in read(path, before=after).targets} == {20.0}


def test_a_mistake_in_a_changed_line_is_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = read(path)
    path.write_text(path.read_text().replace('"https://shop.example/7"', '"shop.example/7"'))
    with pytest.raises(FleetFileError, match=r"page 7.*has no scheme"):
        read(path, before=before)
    path.write_text(path.read_text().replace("page 9", "page 8"))
    with pytest.raises(FleetFileError, match="'page 8' already exists"):
        read(path, before=before)


def test_a_probe_that_cannot_be_made_any_more_fails_its_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet()
    fleet.replace(read(written(tmp_path, 1)).targets, read=True)

    def refused(target: Any) -> Any:
        raise ConfigError("its certificates are gone")

    monkeypatch.setattr(running_target, "make_probe", refused)
    entry = fleet._known("page 0")
    entry.ensure_probe()
    with pytest.raises(ProbeError, match="certificates are gone"):
        entry.probe(entry.target, None).send(None)  # type: ignore[arg-type, attr-defined]
    assert entry.probe is unmade


def test_views_list_the_targets_without_making_probes(tmp_path: Path, made: list[str]) -> None:
    found = list_file(written(tmp_path))
    assert found is not None
    assert [each.name for each in found.targets][:2] == ["page 0", "page 1"]
    assert {(each.type, each.group, each.timeout) for each in found.targets} == {
        ("http", "shop", 10.0)
    }
    assert made == []


LINES = st.sampled_from(
    [
        'name = "a"', "name = 'b'", 'url = "https://x.example/" # here', "interval = 5", "",
        "# [[target]]", 'labels.team = "x"', "labels = { team = 'y' }", "expect = [200,", "204]",
        "[target.headers]", 'Accept = "\\u00e4"', "[group.a]", "[[maintenance]]", "[1]", "x = 1.5",
        '"quoted" = true', "[[target]]", "[[ target ]]  # next", "[alerts]", 'to = ["ops"]',
        'text = """', '"""', "[target]", "[[target.steps]]", 'url = "a" b', "name = \"tab\t\"\r",
    ]
)  # fmt: skip


@given(st.lists(LINES, max_size=14))
def test_a_file_is_parsed_as_tomllib_parses_it(lines: list[str]) -> None:
    text = "\n".join(["[[target]]", 'name = "first"', *lines])
    try:
        wanted: object = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        wanted = str(error)
    try:
        found: object = parse(text).tables
    except tomllib.TOMLDecodeError as error:
        found = str(error)
    assert found == wanted
