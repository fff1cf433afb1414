"""The API in the form that programs read: OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pollwise.alerts.values import NOTE_MAX, Alert
from pollwise.alerts.values import PAGE_MAX as ALERTS_MAX
from pollwise.fleet.api.access import CODES
from pollwise.fleet.api.requests import PAGE_MAX, Routes, answer
from pollwise.fleet.control import CHANGEABLE
from pollwise.fleet.probes import probe_types
from pollwise.fleet.stores.base import ORDERS, TARGET_STATES
from pollwise.fleet.views import FleetState, TargetState
from pollwise.runtime.audit import AuditEntry
from pollwise.version import __version__

_REF = "#/components/schemas/{model}"
Schema = Mapping[str, Any]
_TEXT: Schema = {"type": "string"}
_DURATION: Schema = {"type": ["string", "number"], "examples": ["90s", "5m", "7d"]}
_NEXT: Schema = {"description": "Pass it back to get the next page; null at the end."}
_LIMIT: Schema = {"type": "integer", "minimum": 0, "maximum": PAGE_MAX}
_MEANINGS = {
    400: "Something in the request is wrong; the message says what.",
    401: "A valid token is required.",
    403: "The token may not do this.",
    404: "There is no such target, alert, window or address.",
    409: "It already exists, is defined in the file or in code, or is closed.",
    412: "Somebody else changed it in the meantime.",
    413: "The body is too large.",
    503: "The store does not answer.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address. path: below /api/fleet, with its parameters in braces."""

    method: str
    path: str
    summary: str
    tag: str
    scope: str = "read"
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None
    result: Schema = field(default_factory=lambda: {"type": "object"})
    status: int = 200
    errors: tuple[int, ...] = ()


def _model(name: str) -> Schema:
    return {"$ref": _REF.format(model=name)}


def _page(of: str, items: Schema, *, more: Mapping[str, Schema] | None = None) -> Schema:
    listed = {of: {"type": "array", "items": items}, "next": _NEXT, **(more or {})}
    return {"type": "object", "properties": listed, "required": [of, "next"]}


_ORDERED: Schema = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "enum": list(ORDERS)},
        "targets": {"type": "array", "items": _TEXT},
    },
}
_WINDOWS: Schema = {"type": "array", "items": {"type": "object"}}
_GROUP: Schema = {"type": "string", "description": "Only targets of this group."}

#: Every address of the API. A test compares them with its routes.
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "GET", "/state", "All figures, and the state of the targets", "state",
        query={
            "limit": _LIMIT,
            "after": {**_TEXT, "description": "`next` of the last answer."},
            "state": {"type": "string", "enum": list(TARGET_STATES)},
            "group": _GROUP,
        },
        result=_model("State"),
        errors=(400,),
    ),
    Operation(
        "GET", "/targets/{name}", "One target, and its definition without secrets", "targets",
        result=_model("Target"), errors=(404,),
    ),
    Operation(
        "POST", "/targets", "Define a target", "targets", "operate",
        body=_model("Definition"), result=_model("Target"), status=201, errors=(409,),
    ),
    Operation(
        "PUT", "/targets/{name}", "Define a target, or change its definition", "targets",
        "operate", body=_model("ChangedDefinition"), result=_model("Target"), errors=(409, 412),
    ),
    Operation(
        "DELETE", "/targets/{name}", "Remove a target and its definition", "targets", "operate",
        result={"type": "object", "properties": {"removed": _TEXT}}, errors=(404, 409, 412),
    ),
    Operation(
        "POST", "/targets/{name}/{what}", "Give a target an order", "orders", "operate",
        result=_ORDERED, status=202, errors=(404,),
    ),
    Operation(
        "POST", "/{what}", "Give several targets an order", "orders", "operate",
        body={
            "type": "object",
            "properties": {"targets": {"type": "array", "items": _TEXT}},
            "required": ["targets"],
        },
        result=_ORDERED, status=202, errors=(404,),
    ),
    Operation(
        "GET", "/targets/{name}/history", "Uptimes, percentiles and incidents of a target",
        "history", query={"since": _DURATION}, errors=(400, 404),
    ),
    Operation(
        "GET", "/uptime", "The uptimes of all targets", "history",
        query={"limit": _LIMIT, "after": _TEXT, "group": _GROUP},
        result=_page("targets", {"type": "object"}), errors=(400, 404),
    ),
    Operation(
        "GET", "/incidents", "When targets were down, newest first", "history",
        query={"since": _DURATION, "limit": _LIMIT, "before": {"type": "number"}},
        result=_page("incidents", {"type": "object"}), errors=(400, 404),
    ),
    Operation(
        "GET", "/alerts", "Alerts, newest first; the open ones unless a state is given", "alerts",
        query={
            "state": {"type": "string", "enum": ["open", "closed", "all"]},
            "target": {"type": "string", "description": "Only alerts of this target."},
            "group": _GROUP,
            "limit": {"type": "integer", "minimum": 1, "maximum": ALERTS_MAX},
            "after": {**_TEXT, "description": "`next` of the last answer."},
        },
        result=_page("alerts", _model("Alert")), errors=(400,),
    ),
    Operation(
        "GET", "/alerts/{id}", "One alert", "alerts", result=_model("Alert"), errors=(404,)
    ),
    Operation(
        "POST", "/alerts/{id}/acknowledge", "Acknowledge an open alert", "alerts",
        "operate",
        body={
            "type": "object",
            "properties": {"note": {"type": "string", "maxLength": NOTE_MAX}},
            "additionalProperties": False,
        },
        result=_model("Alert"), errors=(404, 409),
    ),
    Operation(
        "GET", "/maintenance", "The maintenance windows", "maintenance",
        result={"type": "object", "properties": {"windows": _WINDOWS}, "required": ["windows"]},
    ),
    Operation(
        "POST", "/maintenance", "Add a maintenance window", "maintenance", "operate",
        body={"type": "object", "description": "As in fleet.toml."}, status=201,
    ),
    Operation(
        "POST", "/maintenance/{id}/end", "End a maintenance window now", "maintenance", "operate",
        errors=(400, 404),
    ),
    Operation(
        "DELETE", "/maintenance/{id}", "Remove a maintenance window", "maintenance", "operate",
        result={"type": "object", "properties": {"removed": _TEXT}}, errors=(400, 404),
    ),
    Operation(
        "GET", "/polling", "The polling settings, and where each comes from", "settings",
        result=_model("Polling"),
    ),
    Operation(
        "PATCH", "/polling", "Change polling settings; null undoes a change", "settings",
        "operate", body=_model("PollingChange"), result=_model("Polling"),
    ),
    Operation(
        "GET", "/audit", "Who changed what, newest first", "audit", "operate",
        query={"limit": _LIMIT, "before": {"type": "integer", "minimum": 0, "maximum": 10**15}},
        result=_page("entries", _model("AuditEntry")), errors=(400,),
    ),
)  # fmt: skip


def description(prefix: str = "/api/fleet", *, health: bool = True) -> dict[str, Any]:
    """The OpenAPI document. health: with /livez and /readyz, which need no token."""
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(prefix + each.path, {})[each.method.lower()] = _described(each)
    if health:
        for name, summary in (("livez", "Is the process alive"), ("readyz", "Does it poll")):
            answers = {"200": _answered("Yes.", {"type": "object"})}
            if name == "readyz":
                answers["503"] = _answered("Not now; `reasons` says why.", {"type": "object"})
            paths[f"/{name}"] = {
                "get": {
                    "operationId": name, "summary": summary, "tags": ["health"], "security": [],
                    "responses": answers,
                }
            }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pollwise fleet",
            "version": __version__,
            "description": "The state of a fleet of monitored targets, and orders for it.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "The fleet's token."}
            },
        },
        "security": [{"bearer": []}],
    }


class DescriptionRoutes(Routes):
    """The description of the API."""

    def routes(self) -> list[Route]:
        return [Route("/openapi.json", self.openapi, methods=["GET"])]

    async def openapi(self, request: Request) -> Response:
        await self._reader(request)
        prefix: str = request.scope.get("root_path", "")
        return answer(description(prefix or "/api/fleet", health=not prefix))


def _described(each: Operation) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _of_path(name, each)}
        for name in ("name", "what", "id")
        if f"{{{name}}}" in each.path
    ]
    parameters += [
        {"name": name, "in": "query", "schema": dict(schema)} for name, schema in each.query.items()
    ]
    if 412 in each.errors:
        what = "The ETag of the last answer. If it has changed, nothing is done."
        parameters.append(
            {"name": "If-Match", "in": "header", "schema": _TEXT, "description": what}
        )
    errors = {*each.errors, 401, 403, 503, *((400, 413) if each.body is not None else ())}
    found: dict[str, Any] = {
        "operationId": _id_of(each),
        "summary": each.summary,
        "tags": [each.tag],
        "description": f"Needs a token with the scope `{each.scope}`.",
        "parameters": parameters,
        "responses": {
            str(each.status): _answered("Done.", each.result),
            **{str(status): _answered(_MEANINGS[status], _model("Error")) for status in
               sorted(errors)},
        },
    }  # fmt: skip
    if each.method == "PUT":
        found["responses"]["201"] = _answered("A new target.", each.result)
    if each.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": each.body}},
        }
    return found


def _of_path(name: str, each: Operation) -> Schema:
    return {"type": "string", "enum": list(ORDERS)} if name == "what" else _TEXT


def _id_of(each: Operation) -> str:
    words = each.path.replace("{", "").replace("}", "").strip("/").replace("/", "_")
    return f"{each.method.lower()}_{words}"


def _answered(what: str, schema: Schema) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": ", ".join(CODES.values())},
                "message": _TEXT,
                "what_to_do": _TEXT,
                "items": {
                    "type": "array",
                    "items": _TEXT,
                    "description": "Everything that is wrong with a definition.",
                },
            },
            "required": ["code", "message", "what_to_do"],
        }
    },
    "required": ["error"],
}


def _schemas() -> dict[str, Any]:
    """The schemas of bodies and answers; those of states are made from their classes."""

    def made(kind: Any) -> dict[str, Any]:
        return TypeAdapter(kind).json_schema(ref_template=_REF, mode="serialization")

    target, state = made(TargetState), made(FleetState)
    for each in (target, state):
        each.pop("$defs", None)
        each.pop("required", None)
        each["additionalProperties"] = True
    alert = made(Alert)
    alert["properties"]["lasted"] = {"type": ["number", "null"]}
    target["properties"].pop("origin")
    target["properties"] |= {
        "from": {"enum": ["file", "api", "code", None]},
        "definition": {
            "type": ["object", "null"],
            "description": "Its table, without secrets; null for a target of code.",
        },
        "defined": {
            "type": ["object", "null"],
            "description": "Version, author and time of a definition in the store.",
        },
    }
    state["properties"]["target_list"] = {"type": "array", "items": _model("Target")}
    state["properties"]["next"] = _NEXT
    definition = _definition()
    polling = {name: {"type": ["boolean", "string", "number", "null"]} for name in CHANGEABLE}
    return {
        "Target": target,
        "State": state,
        "Definition": {**definition, "required": ["name"]},
        "ChangedDefinition": definition,
        "Alert": alert,
        "AuditEntry": made(AuditEntry),
        "Polling": {
            "type": "object",
            "properties": {
                "kept_in": _TEXT,
                "settings": {"type": "array", "items": {"type": "object"}},
            },
        },
        "PollingChange": {
            "type": "object",
            "properties": {"group": {"type": ["string", "null"]}, **polling},
            "additionalProperties": False,
        },
        "Error": _ERROR,
    }


def _definition() -> Schema:
    """The schema of a target's definition, without its required keys."""
    return {
        "type": "object",
        "description": "The table of a target, as in fleet.toml: its own keys, and the options of "
        "its type.",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 255},
            "type": {"type": "string", "enum": probe_types()},
            "group": {"type": "string"},
            "interval": _DURATION,
            "timeout": _DURATION,
            "labels": {"type": "object", "additionalProperties": _TEXT},
        },
        "additionalProperties": True,
    }
