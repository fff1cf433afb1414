"""Prometheus' blackbox exporter: jobs of a scrape configuration, or lists of targets (file_sd), and
the modules of blackbox.yml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pollwise.errors import ConfigError
from pollwise.fleet.definitions.imports.carried import ImportedTargets, codes, table_of, text, texts

_PROBERS = ("http", "tcp", "icmp", "dns", "grpc")
_DURATION = re.compile(r"\d+(ms|s|m|h|d)")
#: The login in a URL.
_LOGIN = re.compile(r"//[^/?#@]*@")
#: Keys of a module's http table that are carried over, or that change nothing here.
_HTTP_KEYS = {
    "method", "headers", "body", "valid_status_codes", "fail_if_body_not_matches_regexp",
    "follow_redirects", "no_follow_redirects", "tls_config", "preferred_ip_protocol",
    "ip_protocol_fallback", "valid_http_versions", "enable_http2",
}  # fmt: skip


def imported(content: Any, modules: Any = None) -> ImportedTargets:
    """The targets of a configuration. modules: the content of blackbox.yml, if given."""
    found, known = ImportedTargets(), table_of(table_of(modules).get("modules"))
    if modules is not None and not known:
        raise ConfigError("this is not a configuration of the blackbox exporter: no modules")
    if isinstance(content, list):
        found.each(content, "targets", lambda each: _targets(each, {}, "", known, found))
    elif isinstance(content, dict) and "scrape_configs" in content:
        every = table_of(content.get("global")).get("scrape_interval")
        jobs = content["scrape_configs"]
        found.each(jobs, "scrape_configs", lambda job: _job(job, every, known, found))
    else:
        raise ConfigError("this is not a configuration of Prometheus: it has no scrape_configs")
    return found


def _job(job: dict[str, Any], every: Any, known: Mapping[str, Any], found: ImportedTargets) -> None:
    name = str(job.get("job_name"))
    if job.get("metrics_path") != "/probe":
        found.note(name, "is not a job of the blackbox exporter (metrics_path: /probe); left out")
        return
    listed = table_of(job.get("params")).get("module")
    module = str(listed[0]) if isinstance(listed, list) and listed else ""
    if job.get("file_sd_configs"):
        found.note(name, "targets of file_sd_configs are in other files; import these too")
    for key in job:
        if key.endswith("_sd_configs") and key != "file_sd_configs":
            found.note(name, f"{key} finds targets while it runs, and is not carried over")
    interval = job.get("scrape_interval", every)
    plan = {
        "interval": interval if _is_duration(interval) else "1m",
        "timeout": job.get("scrape_timeout") if _is_duration(job.get("scrape_timeout")) else None,
        "group": name,
    }
    static = job.get("static_configs", [])
    found.each(static, name, lambda each: _targets(each, plan, module, known, found))


def _targets(
    entry: dict[str, Any],
    plan: Mapping[str, Any],
    module: str,
    known: Mapping[str, Any],
    found: ImportedTargets,
) -> None:
    labels = table_of(entry.get("labels"))
    module = str(labels.get("__param_module") or labels.get("module") or module)
    listed = entry.get("targets")
    shown = {key: each for key, each in labels.items() if not str(key).startswith("__")}
    for target in listed if isinstance(listed, list) else ():
        if not isinstance(target, str):
            found.note(target, "is not an address; not imported")
            continue
        table = _table(target, module, known, found)
        if table is not None:
            own = {key: each for key, each in plan.items() if key != "group"}
            name = _LOGIN.sub("//", target)  # names are shown to everybody
            found.add(name, {**own, **table, "labels": texts(shown)}, plan.get("group"))


def _table(
    target: str, module: str, known: Mapping[str, Any], found: ImportedTargets
) -> dict[str, Any] | None:
    settings = table_of(known.get(module))
    guess = next((each for each in _PROBERS if module.startswith(each)), None)
    guess = guess or ("icmp" if module.startswith("ping") else "http" if "://" in target else None)
    prober = settings.get("prober", guess)
    if not settings and module:
        found.note(target, f"module {module!r} is not known; give blackbox.yml with --modules")
    options = table_of(settings.get(str(prober)))
    makers = {"http": _http, "tcp": _tcp, "icmp": _icmp, "dns": _dns, "grpc": _grpc}
    make = makers.get(str(prober))
    if make is None:
        found.note(target, f"prober {prober!r} has no counterpart; not imported")
        return None
    table = make(target, options, found)
    limit = settings.get("timeout")
    if table is not None and _is_duration(limit):
        table["timeout"] = limit
    return table


def _http(target: str, options: dict[str, Any], found: ImportedTargets) -> dict[str, Any] | None:
    method = str(options.get("method") or "GET").upper()
    if method not in ("GET", "HEAD", "POST"):
        found.note(target, f"the method {method} is not supported by http; not imported")
        return None
    for key in sorted(options.keys() - _HTTP_KEYS):
        found.note(target, f"http.{key} is not carried over")
    follows = options.get("follow_redirects", not options.get("no_follow_redirects"))
    expressions = options.get("fail_if_body_not_matches_regexp")
    patterns = expressions if isinstance(expressions, list) else []
    if len(patterns) > 1:
        found.note(target, "only the first of fail_if_body_not_matches_regexp is carried over")
    return {
        "type": "http",
        "url": text(target if "://" in target else f"http://{target}"),
        "method": None if method == "GET" else method.lower(),
        "body": text(options.get("body")) if method == "POST" else None,
        "headers": texts(options.get("headers")),
        "expect": codes(_listed(options.get("valid_status_codes"))),
        "regex": text(str(patterns[0])) if patterns else None,
        "redirects": None if follows else 0,
        "verify": _verify(options),
    }


def _tcp(target: str, options: dict[str, Any], found: ImportedTargets) -> dict[str, Any]:
    if options.get("query_response"):
        found.note(target, "tcp.query_response is not carried over")
    tls = True if options.get("tls") else None
    return {
        "type": "tcp",
        "address": target,
        "tls": tls,
        "verify": _verify(options) if tls else None,
    }


def _icmp(target: str, _: dict[str, Any], __: ImportedTargets) -> dict[str, Any]:
    return {"type": "ping", "address": target}


def _dns(target: str, options: dict[str, Any], _: ImportedTargets) -> dict[str, Any]:
    record = str(options.get("query_type") or "ANY").lower()
    domain = text(options.get("query_name"))
    found = {"type": "dns", "domain": domain, "server": target, "record": record}
    return {**found, "record": None} if record == "any" else found


def _grpc(target: str, options: dict[str, Any], _: ImportedTargets) -> dict[str, Any]:
    return {
        "type": "grpc",
        "address": target,
        "service": text(options.get("service")),
        "tls": True if options.get("tls") else None,
    }


def _verify(options: dict[str, Any]) -> bool | None:
    return False if table_of(options.get("tls_config")).get("insecure_skip_verify") else None


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_duration(value: object) -> bool:
    return isinstance(value, str) and _DURATION.fullmatch(value) is not None
