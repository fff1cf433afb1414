"""The HTTP API of a fleet: its state, orders for its targets, and its polling settings.

    GET   /api/fleet/state                       all figures, each target's last success and error
    GET   /api/fleet/targets/NAME                one target, and its definition without secrets
    POST  /api/fleet/targets {"name": …, …}      define a target, as in fleet.toml
    PUT   /api/fleet/targets/NAME {"type": …, …} the same, or change its definition
    DELETE /api/fleet/targets/NAME               remove it
    POST  /api/fleet/targets/NAME/ORDER          retry, close-breaker, pause, resume, poll-now
    POST  /api/fleet/ORDER {"targets": [names]}  the same for several targets
    GET   /api/fleet/targets/NAME/history        uptime, percentiles, incidents; ?since=7d
    GET   /api/fleet/uptime                      the uptimes of all targets
    GET   /api/fleet/incidents                   when targets were down, newest first
    GET   /api/fleet/alerts                      open alerts; ?state=closed, ?target=, ?group=
    GET   /api/fleet/alerts/ID                   one alert
    POST  /api/fleet/alerts/ID/acknowledge       {"note": "…"}: stop its repetitions
    GET   /api/fleet/maintenance                 maintenance windows
    POST  /api/fleet/maintenance                 {"groups": ["shop"], "for": "2h", "note": "…"}
    POST  /api/fleet/maintenance/ID/end          end a window that is under way
    DELETE /api/fleet/maintenance/ID             delete a window
    GET   /api/fleet/polling                     the polling settings, and where each comes from
    GET   /openapi.json                          this API in the form that programs read
    GET   /api/fleet/audit                       who changed what, newest first
    PATCH /api/fleet/polling {"group": null, "enabled": false, "base_interval": "10s", …}

`application` is a Starlette application to mount at /api/fleet in an existing one; `served` is
a standalone one with /livez and /readyz, which need no token. They say that the process is alive
and that it polls, however many targets are broken.

An `authorise` function decides who may do what: it raises a `Refusal` (or any HTTPException), or
returns who the caller is. All changes go to the audit log. Errors have the controller's format:
`{"error": {"code", "message", "what_to_do"}}`.

One module per part of it; `requests` has what all routes share.
"""

from pollwise.fleet.api.access import Authorise, Bearer, Refusal, Scope
from pollwise.fleet.api.application import application, served
from pollwise.fleet.api.requests import BODY_MAX

__all__ = ["BODY_MAX", "Authorise", "Bearer", "Refusal", "Scope", "application", "served"]
