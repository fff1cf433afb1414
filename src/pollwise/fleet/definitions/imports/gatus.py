"""Gatus: its config.yaml, with `endpoints`. Variables such as ${TOKEN} stay variables."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from pollwise.errors import ConfigError
from pollwise.fleet.definitions.imports.carried import ImportedTargets, codes, table_of

_CONDITION = re.compile(r"\s*(\[[A-Z_]+\]\S*|len\(.*?\)|has\(.*?\))\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")
_LISTED = re.compile(r"any\((.*)\)")
_PATTERN = re.compile(r"pat\((.*)\)")
_PLAIN = re.compile(r"(?<!\$)\$([A-Za-z_]\w*)")
_NOT_CARRIED = ("alerts", "maintenance-windows", "ssh", "oauth2")


def imported(content: Any) -> ImportedTargets:
    """The targets of a configuration."""
    if not isinstance(content, dict) or "endpoints" not in content:
        raise ConfigError("this is not a configuration of Gatus: it has no endpoints")
    found = ImportedTargets()
    found.each(content["endpoints"], "endpoints", lambda each: _endpoint(each, found))
    for key in ("alerting", "external-endpoints", "remote", "suites"):
        if content.get(key):
            found.notes.append(f"{key} is not carried over")
    return found


def _endpoint(each: dict[str, Any], found: ImportedTargets) -> None:
    name, url = each.get("name") or each.get("url"), str(each.get("url") or "")
    table = _polled(name, each, url, found)
    if table is None:
        return
    if each.get("enabled") is False:
        found.note(name, "is disabled there; pause it here with `pollwise fleet pause`")
    for key in _NOT_CARRIED:
        if each.get(key):
            found.note(name, f"{key} is not carried over")
    client = table_of(each.get("client"))
    if client.get("insecure"):
        table["verify"] = False
    if client.get("ignore-redirect") and table["type"] == "http":
        table["redirects"] = 0
    conditions = each.get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        what = _condition(str(condition), table)
        if what is not None:
            found.note(name, f"the condition {str(condition)[:100]!r} {what}")
    plan = {"interval": _duration(each.get("interval")) or "60s"}
    found.add(name, {**table, **plan, "timeout": _duration(client.get("timeout"))},
              each.get("group"))  # fmt: skip


def _polled(
    name: object, each: dict[str, Any], url: str, found: ImportedTargets
) -> dict[str, Any] | None:
    try:
        parts = urlsplit(url)
        address = parts.netloc.rpartition("@")[2]
    except ValueError:
        found.note(name, "its url is not a URL; not imported")
        return None
    dns = each.get("dns")
    if isinstance(dns, dict):
        record = str(dns.get("query-type") or "A").lower()
        server = address or url
        return {"type": "dns", "domain": dns.get("query-name"), "record": record, "server": server}
    scheme = parts.scheme.lower()
    if scheme in ("http", "https"):
        method = str(each.get("method") or "GET").upper()
        if method not in ("GET", "HEAD", "POST") or each.get("graphql"):
            found.note(name, f"the method {method} or GraphQL is not supported; not imported")
            return None
        headers = table_of(each.get("headers"))
        return {
            "type": "http",
            "url": _braced(url),
            "method": None if method == "GET" else method.lower(),
            "body": _braced(str(each["body"])) if each.get("body") and method == "POST" else None,
            "headers": {str(k): _braced(str(e)) for k, e in headers.items()} or None,
        }
    makers: dict[str, dict[str, Any]] = {
        "tcp": {"type": "tcp", "address": address},
        "icmp": {"type": "ping", "address": address},
        "tls": {"type": "certificate", "address": address},
        "starttls": {"type": "certificate", "address": address, "starttls": "smtp"},
        "ws": {"type": "websocket", "url": url},
        "wss": {"type": "websocket", "url": url},
        "grpc": {"type": "grpc", "address": address},
        "grpcs": {"type": "grpc", "address": address, "tls": True},
    }
    if scheme not in makers:
        found.note(name, f"URLs of {scheme or 'this form'} have no counterpart; not imported")
        return None
    return makers[scheme]


def _condition(condition: str, table: dict[str, Any]) -> str | None:
    """Carry a condition over; returns a note about it, or None."""
    read = _CONDITION.fullmatch(condition)
    if read is None:
        return "is not understood"
    what, sign, value = read.groups()
    http = table["type"] == "http"
    if (what, sign, value.lower()) == ("[CONNECTED]", "==", "true") or what == "[DNS_RCODE]":
        return None
    if what == "[STATUS]" and http:
        listed = _LISTED.fullmatch(value)
        if sign == "==":
            table["expect"] = codes(listed[1].split(",") if listed else [value])
        elif sign in ("<", "<=") and value.isdigit():
            table["expect"] = codes([f"100-{int(value) - (sign == '<')}"])
        else:
            return "is not carried over"
        return None
    if what == "[CERTIFICATE_EXPIRATION]" and sign in (">", ">=") and table["type"] != "dns":
        duration = _duration(value)
        if duration is not None:
            table["tls_warning"] = duration
            return None
    pattern = _PATTERN.fullmatch(value)
    reads = "json" in table or "regex" in table  # a probe has one of them
    if what == "[BODY]" and sign == "==" and pattern is not None and http and not reads:
        parts = map(re.escape, pattern[1].split("*"))
        table["regex"] = "(?s)" + ".*".join(parts)
        return None
    if what == "[RESPONSE_TIME]" and sign in ("<", "<="):
        return f"is not carried over; define an alert: latency > {value}ms"
    if what.startswith("[BODY]") and http:
        path = what.removeprefix("[BODY]").removeprefix(".")
        if path and not reads:
            table["json"] = path
            return "is carried over as the path of the reading; the value is not compared"
    return "is not carried over"


def _duration(value: object) -> str | None:
    """A duration in the form of Go, of one unit; Pollwise writes the common ones alike."""
    return value if isinstance(value, str) and re.fullmatch(r"\d+(ms|s|m|h)", value) else None


def _braced(value: str) -> str:
    """$NAME, as Gatus also allows, becomes ${NAME}."""
    return _PLAIN.sub(r"${\1}", value).replace("$$", "$")
