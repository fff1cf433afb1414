"""Exports of other monitors become targets; what cannot be carried over is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError
from pollwise.fleet.definitions.imports import blackbox, carried, gatus, kuma
from pollwise.fleet.definitions.imports.carried import ImportedTargets, loaded
from pollwise.fleet.definitions.imports.written import written
from pollwise.fleet.file import read_text

KUMA: dict[str, Any] = {
    "version": "1.23.11",
    "notificationList": [{"id": 1, "name": "mail"}],
    "monitorList": [
        {"id": 1, "name": "Shop", "type": "group"},
        {
            "id": 2, "name": "front", "type": "http", "url": "https://shop.example/${x}",
            "method": "GET", "interval": 60, "timeout": 48, "maxredirects": 10, "active": True,
            "accepted_statuscodes": ["200-299", "404"], "ignoreTls": True, "parent": 1,
            "headers": '{"X-A": "b"}', "basic_auth_user": "me", "basic_auth_pass": "hunter2",
            "authMethod": "basic", "tags": [{"name": "team", "value": "web"}],
        },
        {"id": 3, "name": "words", "type": "keyword", "url": "https://a.example",
         "keyword": "a.b c", "accepted_statuscodes": ["200-299"], "interval": 20, "active": 0},
        {"id": 4, "name": "front", "type": "port", "hostname": "db.example", "port": 5432,
         "interval": 30, "parent": 1},
        {"id": 5, "name": "router", "type": "ping", "hostname": "192.0.2.1", "interval": 60},
        {"id": 6, "name": "names", "type": "dns", "hostname": "a.example", "interval": 60,
         "dns_resolve_type": "MX", "dns_resolve_server": "192.0.2.53"},
        {"id": 7, "name": "push me", "type": "push"},
        {"id": 8, "name": "inside out", "type": "http", "url": "https://a/", "upsideDown": True},
        {"id": 9, "name": "odd", "type": "http", "url": "not a url"},
        {"id": 10, "name": "api", "type": "json-query", "url": "https://a.example/j",
         "jsonPath": "$.status.db", "expectedValue": "up", "interval": 60},
        7,
    ],
}  # fmt: skip


def by_name(found: ImportedTargets) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in found.tables}


def read_back(found: ImportedTargets) -> None:
    """What is written can be read, and is the same."""
    file = read_text(written(found.tables))
    assert dict(file.tables) == by_name(found)


def test_uptime_kuma() -> None:
    found = kuma.imported(KUMA)
    tables = by_name(found)
    assert tables["front"] == {
        "name": "front", "type": "http", "url": "https://shop.example/$${x}",
        "headers": {"X-A": "b", "Authorization": "Basic bWU6aHVudGVyMg=="},
        "expect": [*range(200, 300), 404], "verify": False, "redirects": 10, "interval": "60s",
        "timeout": "48s", "labels": {"team": "web"}, "group": "Shop",
    }  # fmt: skip
    assert tables["words"]["regex"] == r"a\.b\ c"
    assert "expect" not in tables["words"]
    assert tables["Shop: front"]["address"] == "db.example:5432"
    assert tables["router"]["type"] == "ping"
    assert (tables["names"]["record"], tables["names"]["server"]) == ("mx", "192.0.2.53")
    assert tables["api"]["json"] == "status.db"
    assert len(tables) == 6
    told = "\n".join(found.notes)
    for each in (
        "'push me': monitors of type 'push' have no counterpart",
        "'inside out': is upside down",
        "'words': is paused there",
        "target 'odd': url",
        "'monitorList 11': is not a table",
        "notifications are not carried over",
        "'api': the expected value of the JSON query is not compared",
    ):
        assert each in told
    assert "hunter2" not in told
    read_back(found)


GATUS = """
alerting: {slack: {webhook-url: "https://hooks.example/x"}}
x-defaults: &defaults
  interval: 30s
  alerts: [{type: slack}]
endpoints:
  - <<: *defaults
    name: front
    group: core
    url: "https://a.example/health"
    headers: {Authorization: "Bearer $TOKEN"}
    client: {timeout: 5s, insecure: true}
    conditions:
      - "[STATUS] == any(200, 429)"
      - "[RESPONSE_TIME] < 300"
      - "[CERTIFICATE_EXPIRATION] > 48h"
      - "[BODY].status == UP"
      - "[BODY] == pat(*a.b*)"
      - "something else"
  - {name: front, group: edge, url: "tcp://b.example:22", conditions: ["[CONNECTED] == true"]}
  - {name: router, url: "icmp://192.0.2.1"}
  - {name: names, url: "192.0.2.53", dns: {query-name: a.example, query-type: AAAA}}
  - {name: mail, url: "starttls://mail.example:587"}
  - {name: shell, url: "ssh://a.example:22"}
  - name: idle
    url: "https://c.example"
    enabled: false
    conditions: ["[STATUS] < 400", "[BODY] == pat(*a.b*)"]
  - {name: gone, url: "https://c.example", method: DELETE}
"""


def from_text(folder: Path, text: str) -> Any:
    path = folder / "export.yaml"
    path.write_text(text)
    return loaded(path)


def test_gatus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    found = gatus.imported(from_text(tmp_path, GATUS))
    tables = by_name(found)
    assert tables["front"] == {
        "name": "front", "type": "http", "url": "https://a.example/health",
        "headers": {"Authorization": "Bearer ${TOKEN}"}, "verify": False, "expect": [200, 429],
        "tls_warning": "48h", "json": "status", "interval": "30s", "timeout": "5s", "group": "core",
    }  # fmt: skip
    assert tables["edge: front"]["address"] == "b.example:22"
    assert tables["names"]["domain"] == "a.example"
    assert tables["mail"] == {
        "name": "mail", "type": "certificate", "address": "mail.example:587", "starttls": "smtp",
        "interval": "60s",
    }  # fmt: skip
    assert tables["idle"]["expect"] == list(range(100, 400))
    assert tables["idle"]["regex"] == r"(?s).*a\.b.*"
    assert tables.keys() == {"front", "edge: front", "router", "names", "mail", "idle"}
    told = "\n".join(found.notes)
    for each in (
        "'front': alerts is not carried over",
        "'[RESPONSE_TIME] < 300' is not carried over; define an alert: latency > 300ms",
        "'something else' is not understood",
        "'[BODY].status == UP' is carried over as the path of the reading",
        "'[BODY] == pat(*a.b*)' is not carried over",
        "'shell': URLs of ssh have no counterpart",
        "'idle': is disabled there",
        "'gone': the method DELETE",
        "alerting is not carried over",
    ):
        assert each in told
    read_back(found)


PROMETHEUS = """
global: {scrape_interval: 15s}
scrape_configs:
  - job_name: web
    metrics_path: /probe
    params: {module: [http_post]}
    scrape_timeout: 10s
    static_configs:
      - targets: [https://a.example/x, b.example]
        labels: {team: shop, __internal: x}
  - job_name: ports
    metrics_path: /probe
    scrape_interval: 1m
    params: {module: [ssh]}
    static_configs: [{targets: ["a.example:22"]}]
    file_sd_configs: [{files: [more.json]}]
  - job_name: pings
    metrics_path: /probe
    params: {module: [icmp_fast]}
    static_configs: [{targets: [192.0.2.1]}]
    kubernetes_sd_configs: [{role: node}]
  - {job_name: node, static_configs: [{targets: ["a:9100"]}]}
"""
MODULES = """
modules:
  http_post:
    prober: http
    timeout: 5s
    http:
      method: POST
      body: "{}"
      valid_status_codes: [200, 201]
      fail_if_body_not_matches_regexp: ["ok", "fine"]
      fail_if_ssl: true
      tls_config: {insecure_skip_verify: true}
      follow_redirects: false
  ssh: {prober: tcp, tcp: {query_response: [{expect: "^SSH"}]}}
"""


def test_blackbox(tmp_path: Path) -> None:
    modules = from_text(tmp_path, MODULES)
    found = blackbox.imported(from_text(tmp_path, PROMETHEUS), modules)
    tables = by_name(found)
    assert tables["https://a.example/x"] == {
        "name": "https://a.example/x", "interval": "15s", "timeout": "5s", "type": "http",
        "url": "https://a.example/x", "method": "post", "body": "{}", "expect": [200, 201],
        "regex": "ok", "redirects": 0, "verify": False, "labels": {"team": "shop"}, "group": "web",
    }  # fmt: skip
    assert tables["b.example"]["url"] == "http://b.example"
    assert (tables["a.example:22"]["type"], tables["a.example:22"]["interval"]) == ("tcp", "1m")
    assert tables["192.0.2.1"]["type"] == "ping"
    assert len(tables) == 4
    told = "\n".join(found.notes)
    for each in (
        "http.fail_if_ssl is not carried over",
        "'a.example:22': tcp.query_response is not carried over",
        "'ports': targets of file_sd_configs are in other files",
        "'pings': kubernetes_sd_configs finds targets while it runs",
        "'192.0.2.1': module 'icmp_fast' is not known",
        "'node': is not a job of the blackbox exporter",
    ):
        assert each in told
    read_back(found)


def test_a_list_of_targets() -> None:
    found = blackbox.imported(
        [{"targets": ["https://a.example"], "labels": {"module": "http_2xx"}}]
    )
    assert [each["url"] for each in found.tables] == ["https://a.example"]


@pytest.mark.parametrize("read", [kuma.imported, gatus.imported, blackbox.imported])
@pytest.mark.parametrize("content", [None, 7, {}, {"a": 1}, "x"])
def test_another_kind_of_file_is_refused(read: Any, content: Any) -> None:
    with pytest.raises(ConfigError, match="this is not"):
        read(content)


ODD: list[Any] = [
    None,
    7,
    -1,
    True,
    "x",
    "\x00\ud800",
    [],
    {},
    [[1]],
    {"a": {"b": 1}},
    1e99,
    "9" * 400,
]


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_are_noted_and_never_fail(odd: Any) -> None:
    keys = {key for each in KUMA["monitorList"][1:10] for key in each}
    for kind in ("http", "keyword", "port", "ping", "dns", "smtp", "grpc-keyword", "json-query"):
        table: dict[str, Any] = {**dict.fromkeys(keys, odd), "type": kind, "upsideDown": False}
        kuma.imported({"monitorList": [table, {"type": kind, "name": odd}]})
    for url in ("https://a", "tcp://a:1", "wss://a", odd):
        keys = {
            "name",
            "group",
            "interval",
            "method",
            "headers",
            "body",
            "client",
            "conditions",
            "dns",
        }
        gatus.imported({"endpoints": [{**dict.fromkeys(keys, odd), "url": url}]})
    job = {"job_name": odd, "metrics_path": "/probe", "params": {"module": [odd]}}
    static: dict[str, Any] = {"targets": [odd, "a:1"], "labels": odd}
    for module in ("http", "tcp", "icmp", "dns", "grpc", odd):
        content = {"scrape_configs": [{**job, "static_configs": [static], "scrape_interval": odd}]}
        given = {"prober": module, "timeout": odd, str(module): odd}
        blackbox.imported(content, {"modules": {str(odd): given}})


def test_hostile_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "VALUES_MAX", 10_000)
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{after}: &{after} [{','.join([f'*{before}'] * 10)}]\n"
        for before, after in zip("abcdef", "bcdefg", strict=True)
    )
    with pytest.raises(ConfigError, match="more than 10000 values"):
        from_text(tmp_path, bomb)
    merged = "a: &a {k: 1}\n" + "".join(
        f"{after}: &{after} {{<<: [{','.join([f'*{before}'] * 10)}]}}\n"
        for before, after in zip("abcdef", "bcdefg", strict=True)
    )
    for text in (merged, "endpoints: &a [*a]"):
        with pytest.raises(ConfigError, match="more than 10000 values"):
            from_text(tmp_path, text)
    for text in ("[" * 50_000, "- " * 50_000 + "x", "[" * 50_000 + "]" * 50_000):
        with pytest.raises(ConfigError, match="nested deeper than 100 levels"):
            from_text(tmp_path, text)
    for text in ("!!python/object/apply:os.system ['id']", "a: [", "a: *b"):
        with pytest.raises(ConfigError, match="neither JSON nor YAML"):
            from_text(tmp_path, text)
    monkeypatch.setattr(carried, "FILE_MAX", 100)
    with pytest.raises(ConfigError, match="larger than 100 bytes"):
        from_text(tmp_path, json.dumps(KUMA))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        loaded(tmp_path / "none")


def test_a_login_in_an_address_is_not_in_the_name() -> None:
    listed = [{"targets": ["http://user:hunter2@shop.example/", 5, None]}]
    found = blackbox.imported(listed)
    [table] = found.tables
    assert (table["name"], table["url"]) == (
        "http://shop.example/", "http://user:hunter2@shop.example/",
    )  # fmt: skip
    assert found.notes == [
        "'5': is not an address; not imported", "'None': is not an address; not imported",
    ]  # fmt: skip


def test_a_password_of_ntlm_is_not_sent_in_another_way() -> None:
    monitor = {
        "name": "intranet", "type": "http", "url": "https://in.example/", "authMethod": "ntlm",
        "basic_auth_user": "me", "basic_auth_pass": "hunter2",
    }  # fmt: skip
    found = kuma.imported({"monitorList": [monitor]})
    assert found.tables == []
    [said] = found.notes
    assert "NTLM" in said
    assert "hunter2" not in said
