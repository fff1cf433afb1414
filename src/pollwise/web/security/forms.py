"""What a browser sends: forms within limits and from our own pages, and where it may be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

#: The largest form, in bytes; the most fields; and how long a form may take to
#: arrive, in seconds.
FORM_MAX = 256 * 1024
FIELDS_MAX = 1000
FORM_WITHIN = 30.0
#: The longest address that a form may ask to return to.
BACK_MAX = 2000

_KINDS = ("application/x-www-form-urlencoded", "multipart/form-data")


def is_from_here(request: Request) -> bool:
    """False if the browser says that a page of another site sent this request.

    `Sec-Fetch-Site` cannot be set by scripts; browsers send it where they trust the connection.
    Else `Origin` has to name the host that the request was sent to.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form by name, of equal names the last; `HTTPException` beyond a limit.

    A page that takes files has read its form before, within limits of its own.
    """
    read: FormData | None = getattr(request, "_form", None)
    form = await _read(request) if read is None else read
    items = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
    if len(items) > FIELDS_MAX:
        raise HTTPException(413, f"The form has more than {FIELDS_MAX} fields.")
    request.state.fields = items
    return dict(items)


def check_kind(request: Request) -> None:
    """Refuse what is not a form, or not in UTF-8: some codecs of Python take quadratic time."""
    name, options = parse_options_header(request.headers.get("content-type"))
    kind = name.decode("latin-1")
    if kind not in _KINDS:
        raise HTTPException(415, f"Expected a form, got the content type {kind[:60]!r}.")
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise HTTPException(415, "Expected a form in UTF-8.")


async def _read(request: Request) -> FormData:
    check_kind(request)
    left = FORM_MAX

    async def receive() -> Message:
        nonlocal left
        message = await request.receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, f"The form is larger than {FORM_MAX:,} bytes.")
        return message

    limited = Request(request.scope, receive)
    try:
        async with asyncio.timeout(FORM_WITHIN):
            return await limited.form(max_files=0, max_fields=FIELDS_MAX, max_part_size=FORM_MAX)
    except TimeoutError:
        raise HTTPException(408, "The form did not arrive in time.") from None
    except (MultiPartException, ClientDisconnect):
        raise HTTPException(400, "The form cannot be read.") from None


def values_of(request: Request, name: str) -> list[str]:
    """All values of a field of the form that was read, such as those of checkboxes."""
    return [value for each, value in getattr(request.state, "fields", ()) if each == name]


def is_local(path: object, root: str = "") -> bool:
    """True if a browser that is sent to this address stays below `root` of this site.

    >>> [is_local(each) for each in ("/queues/a?x=1", "//evil.example", "/\\\\evil.example", "a")]
    [True, False, False, False]
    """
    if not isinstance(path, str) or not path.startswith(f"{root}/") or len(path) > BACK_MAX:
        return False
    # Browsers read a backslash as a slash, and skip tabs and line breaks.
    if path.startswith("//") or "\\" in path or not path.isprintable() or " " in path:
        return False
    try:
        parts = urlsplit(path)
    except ValueError:
        return False
    # Browsers read %2e as a dot.
    steps = parts.path.lower().replace("%2e", ".").split("/")
    return not parts.scheme and not parts.netloc and ".." not in steps


def back_from(request: Request, form: Mapping[str, str]) -> str:
    """The page to show after an action: the form's `back` if it is one of ours, else this page."""
    root = request.scope.get("root_path", "")
    back = form.get("back", "")
    if is_local(back, root):
        return back
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return here if is_local(here, root) else f"{root}/"
