"""Uptime Kuma: the JSON file of Settings → Backup → Export."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from pollwise.errors import ConfigError
from pollwise.fleet.definitions.imports.carried import (
    ImportedTargets,
    codes,
    number,
    seconds_text,
    text,
    texts,
)

_METHODS = ("GET", "HEAD", "POST")
_PATH = re.compile(r"\$?\.?[A-Za-z_][\w.\[\]]*")


def imported(content: Any) -> ImportedTargets:
    """The targets of an export."""
    if not isinstance(content, dict) or "monitorList" not in content:
        raise ConfigError("this is not an export of Uptime Kuma: it has no monitorList")
    found = ImportedTargets()
    monitors = content["monitorList"]
    if isinstance(monitors, dict):
        monitors = list(monitors.values())
    parents: dict[Any, str] = {}
    if isinstance(monitors, list):
        groups = [e for e in monitors if isinstance(e, dict) and e.get("type") == "group"]
        parents = {str(each.get("id")): str(each.get("name")) for each in groups}
    found.each(monitors, "monitorList", lambda each: _monitor(each, parents, found))
    if content.get("notificationList"):
        found.notes.append("notifications are not carried over; define alerts and their channels")
    return found


def _monitor(each: dict[str, Any], parents: dict[Any, str], found: ImportedTargets) -> None:
    name, kind = each.get("name") or f"monitor {each.get('id')}", each.get("type")
    if kind == "group":
        return  # its monitors have it as their group
    if each.get("upsideDown"):
        found.note(name, "is upside down (up while it fails), which does not exist; not imported")
        return
    makers = {
        "http": _http, "keyword": _http, "json-query": _http, "port": _tcp, "ping": _ping,
        "dns": _dns, "grpc-keyword": _grpc, "websocket-upgrade": _websocket, "smtp": _smtp,
    }  # fmt: skip
    make = makers.get(str(kind))
    table = None if make is None else make(name, each, found)
    if make is None:
        found.note(name, f"monitors of type {kind!r} have no counterpart; not imported")
    if table is None:
        return
    tags = each.get("tags")
    labels = {
        str(tag.get("name")): str(tag.get("value") or "")
        for tag in (tags if isinstance(tags, list) else ())
        if isinstance(tag, dict)
    }
    if each.get("active") in (False, 0):
        found.note(name, "is paused there; pause it here with `pollwise fleet pause`")
    plan = {
        "interval": seconds_text(each.get("interval")),
        "timeout": seconds_text(each.get("timeout")),
        "labels": labels or None,
    }
    found.add(name, {**table, **plan}, parents.get(str(each.get("parent"))))


def _http(name: object, each: dict[str, Any], found: ImportedTargets) -> dict[str, Any] | None:
    method = str(each.get("method") or "GET").upper()
    if method not in _METHODS:
        found.note(name, f"the method {method} is not supported by http; not imported")
        return None
    if str(each.get("authMethod")).lower() == "ntlm":
        found.note(name, "its password of NTLM must not be sent in another way; not imported")
        return None
    headers = _headers(name, each, found)
    table: dict[str, Any] = {
        "type": "http",
        "url": text(each.get("url")),
        "method": None if method == "GET" else method.lower(),
        "body": text(each.get("body")) if method == "POST" else None,
        "headers": headers or None,
        "expect": codes(each.get("accepted_statuscodes") or ()),
        "verify": False if each.get("ignoreTls") else None,
    }
    redirects = each.get("maxredirects")
    if isinstance(redirects, int) and 0 <= redirects <= 20:
        table["redirects"] = redirects
    if each.get("type") == "keyword":
        if each.get("invertKeyword"):
            found.note(name, "an inverted keyword cannot be carried over; not imported")
            return None
        table["regex"] = re.escape(str(each.get("keyword") or ""))
    elif each.get("type") == "json-query":
        path = str(each.get("jsonPath") or "")
        if _PATH.fullmatch(path):
            table["json"] = path.removeprefix("$").removeprefix(".")
            found.note(name, "the expected value of the JSON query is not compared")
        else:
            found.note(name, "its JSON query is not a plain path; only the status is compared")
    return table


def _headers(name: object, each: dict[str, Any], found: ImportedTargets) -> dict[str, str]:
    headers: dict[str, str] = {}
    given = each.get("headers")
    if isinstance(given, str) and given.strip():
        try:
            headers = texts(json.loads(given)) or {}
        except (ValueError, RecursionError):
            found.note(name, "its headers are not JSON and are not carried over")
    user, secret = each.get("basic_auth_user"), each.get("basic_auth_pass")
    if user or secret:
        pair = base64.b64encode(f"{user or ''}:{secret or ''}".encode(errors="replace")).decode()
        headers["Authorization"] = f"Basic {pair}"
        found.note(name, "its password is in the header Authorization; better use a ${VARIABLE}")
    elif each.get("authMethod") not in (None, "", "null"):
        found.note(name, f"its authentication {each['authMethod']!r} is not carried over")
    return headers


def _address(each: dict[str, Any]) -> str:
    host, port = str(each.get("hostname") or ""), number(each.get("port"))
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port:g}"


def _tcp(_: object, each: dict[str, Any], __: ImportedTargets) -> dict[str, Any]:
    return {"type": "tcp", "address": _address(each)}


def _ping(_: object, each: dict[str, Any], __: ImportedTargets) -> dict[str, Any]:
    return {"type": "ping", "address": text(each.get("hostname"))}


def _smtp(_: object, each: dict[str, Any], __: ImportedTargets) -> dict[str, Any]:
    return {"type": "smtp", "address": _address(each)}


def _dns(_: object, each: dict[str, Any], __: ImportedTargets) -> dict[str, Any]:
    record = str(each.get("dns_resolve_type") or "A").lower()
    server = text(each.get("dns_resolve_server"))
    return {"type": "dns", "domain": text(each.get("hostname")), "record": record, "server": server}


def _grpc(name: object, each: dict[str, Any], found: ImportedTargets) -> dict[str, Any]:
    found.note(name, "polled by the health service of gRPC; its keyword is not carried over")
    tls = True if each.get("grpcEnableTls") else None
    return {"type": "grpc", "address": text(each.get("grpcUrl")), "tls": tls}


def _websocket(_: object, each: dict[str, Any], __: ImportedTargets) -> dict[str, Any]:
    return {"type": "websocket", "url": text(each.get("url"))}
