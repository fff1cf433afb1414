"""Who looks at a page, and what they may do.

`WebAccess` asks a function of the application who sent a request; `SessionAccess` has a login page
of its own, for tokens and a password. Both check every form and write the audit log.
"""

from __future__ import annotations

import inspect
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from pollwise.controller.security.auth import Auth, InvalidToken
from pollwise.controller.security.tokens import PREFIX, Tokens, hash_of
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.values import Token
from pollwise.errors import ConfigError
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import Clock
from pollwise.runtime.http import address_of, is_address
from pollwise.web.security.forms import back_from, is_from_here, read_form
from pollwise.web.security.limits import LoginLimits
from pollwise.web.security.passwords import Password
from pollwise.web.security.signing import Cookie, Signer, same

if TYPE_CHECKING:
    from pollwise.web.app import Web
    from pollwise.web.view import Visit

WebScope = Literal["read", "operate", "admin"]
#: What each scope includes.
INCLUDES: Mapping[str, frozenset[str]] = {
    "read": frozenset({"read"}),
    "operate": frozenset({"read", "operate"}),
    "admin": frozenset({"read", "operate", "admin"}),
}
#: How long somebody stays logged in, in seconds.
SESSION_LIFE = 12 * 3600.0
#: Seconds that a message waits for the next page, and that an address to log in once is valid.
FLASH_LIFE = 60.0
LINK_LIFE = 600.0
#: The longest message, in bytes: browsers and proxies refuse long cookies.
FLASH_MAX = 1000
#: The maximum number of ended sessions, and of used addresses to log in once, to remember.
ENDED_MAX = 10_000
LINKS_MAX = 100
#: How long the audit log is kept, in seconds, and how often it is pruned.
AUDIT_KEPT = 90 * 86400.0
PRUNE_EVERY = 3600.0
PRUNED_AT_ONCE = 1000


class Forbidden(Exception):
    """The viewer may not do this; the page answers 403."""


class ScopeMissing(Forbidden):
    """The viewer's scope does not include what the page or the action needs."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who may see pages.

    who: for the audit log. csrf: the token that each of their forms carries, filled in here.
    name: how pages call them, if not by `who`.
    """

    who: str
    scope: WebScope
    csrf: str = ""
    name: str = ""

    def may(self, scope: str) -> bool:
        return scope in INCLUDES[self.scope]

    def must_have(self, scope: str) -> None:
        if not self.may(scope):
            raise ScopeMissing(f"this needs the scope {scope}, and you have {self.scope}")


#: Says who sent a request; None for somebody who may not look.
Authorise = Callable[[Request], Viewer | Awaitable[Viewer | None] | None]


def everybody(request: Request) -> Viewer:
    """Lets everybody do everything, as `authorise=pollwise.web.everybody`.

    Only for an application that nobody else can reach. The address in the browser has to be an IP
    address or localhost: any other name could be made to point here, by a page that somebody with
    access looks at (DNS rebinding).
    """
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not is_address(hosts[0]):
        raise Forbidden(
            "without a login, these pages answer only at localhost or at an IP address. For "
            "another name, give `authorise` a function of your own"
        )
    return Viewer("everybody", "admin")


class WebAccess:
    """Checks who sent a request by a function of the application.

    authorise: returns a `Viewer`, or None. login: where the application lets people log in.
    state: has the key that signs forms, and the audit log; None keeps a key of this process and
        writes the audit log only to the process's own log.
    read_only: nobody may change anything.
    """

    #: The tokens that the login page accepts; None without a login page of its own.
    tokens: Tokens | None = None
    #: True if viewers can log out here.
    can_log_out = False

    def __init__(
        self,
        authorise: Authorise | None = None,
        *,
        state: ControllerState | None = None,
        read_only: bool = False,
        login: str = "",
        clock: Clock | None = None,
    ) -> None:
        self.state = state
        self.read_only = read_only
        self.clock: Clock = clock or Clock()
        self._authorise = authorise
        self._login = login
        self._signer: Signer | None = None
        self._flash = Cookie("")
        self._pruned = float("-inf")

    # What pages use

    async def viewer(self, request: Request) -> Viewer | None:
        """Who sent a request; None if they have to log in first."""
        await self.start()
        found = await self._found(request)
        if found is None:
            return None
        return replace(
            found,
            scope="read" if self.read_only else found.scope,
            csrf=found.csrf or self.signer.code("csrf", found.who),
        )

    def ask_for_login(self, request: Request) -> Response:
        if not self._login:
            raise Forbidden("log in to the application first")
        return RedirectResponse(self._login, status_code=303)

    async def checked_form(self, request: Request, viewer: Viewer) -> Mapping[str, str]:
        """The fields of a form; `Forbidden` if it does not come from a page of this viewer."""
        check_origin(request)
        form = await read_form(request)
        self._check_csrf(form, viewer)
        return form

    def check_writable(self) -> None:
        if self.read_only:
            raise Forbidden("this web interface is read-only")

    async def note(self, visit: Visit, action: str, what: str) -> None:
        """Write into the audit log what a viewer did.

        action: in the log, `retry` of the page `queue` is `queue.retry`; a name with a dot stays.
        what: the sentence that the viewer reads. The log has the address of the page as well.
        """
        page = getattr(visit.request.scope.get("route"), "name", None) or "web"
        named = action if "." in action else f"{page}.{action}"
        root = visit.request.scope.get("root_path", "")
        path = visit.request.url.path.removeprefix(root)
        await self._note(visit.request, visit.viewer.who, named, path, what)

    def way_back(self, request: Request, form: Mapping[str, str]) -> str:
        """The page to show after an action: `back` of the form if it is a path here, else this."""
        return back_from(request, form)

    def flash(self, request: Request, response: Response, message: str, *, good: bool) -> None:
        """Show a message once, on the next page."""
        said = message.encode("utf-8", "replace")
        cut = len(said) > FLASH_MAX
        text = said[:FLASH_MAX].decode("utf-8", "ignore") + "…" * cut
        value = self.signer.signed("flash", [text, good], FLASH_LIFE)
        self._flash.set(request, response, value, FLASH_LIFE)

    def flashed(self, request: Request) -> tuple[str, bool] | None:
        """The message to show, and whether it is good news."""
        values = self.signer.opened("flash", self._flash.read(request))
        return None if values is None else (values[0], values[1])

    def forget_flash(self, request: Request, response: Response) -> None:
        self._flash.delete(request, response)

    # What an application uses

    def routes(self, web: Web) -> Sequence[BaseRoute]:
        """The pages to log in and out."""
        return ()

    async def start(self) -> None:
        """Read the key. The first request does it."""
        if self._signer is None and self.state is not None:
            self._use(await self.state.secret("web"))

    @property
    def signer(self) -> Signer:
        """The signer of cookies and forms; there is none before the first request."""
        if self._signer is None:
            if self.state is not None:
                raise RuntimeError("start() reads the key first")
            return self._use(secrets.token_bytes(32))
        return self._signer

    def _use(self, key: bytes) -> Signer:
        self._signer = made = Signer(key, self.clock)
        self._flash = Cookie(f"pollwise_flash_{made.mark}")
        return made

    async def _found(self, request: Request) -> Viewer | None:
        answer: Any = None if self._authorise is None else self._authorise(request)
        found = await answer if inspect.isawaitable(answer) else answer
        if found is not None and (
            not isinstance(found, Viewer) or found.scope not in INCLUDES or not found.who
        ):
            raise TypeError(
                f"authorise returned {type(found).__name__}; return None, or "
                'Viewer(who, "read"), with read, operate or admin as its scope'
            )
        return found

    def _check_csrf(self, form: Mapping[str, str], viewer: Viewer) -> None:
        if not same(form.get("csrf", ""), viewer.csrf):
            raise Forbidden("the form is out of date; load the page again and repeat it")

    async def _note(
        self, request: Request, who: str, action: str, what: str = "", detail: str = ""
    ) -> None:
        address = address_of(request.scope)
        if self.state is None:
            AuditEntry.of(who, action, what, detail, address).log()
            return
        await self.state.note(who, action, what, detail, address)
        if self.clock.now() - self._pruned >= PRUNE_EVERY:
            if await self.state.prune_audit(AUDIT_KEPT, PRUNED_AT_ONCE) < PRUNED_AT_ONCE:
                self._pruned = self.clock.now()  # else the next entry goes on


class SessionAccess(WebAccess):
    """A login page of our own: for tokens with the scopes read, operate and admin, and a password.

    A session is a signed cookie. It names what somebody logged in with, and ends with it: when the
    token is revoked, rotated or expires, or the password is changed.

    auth, tokens: those of a controller in this process, which learns of revoked tokens at once.
    password: lets in as an admin. life: how long a session lasts.
    """

    can_log_out = True

    def __init__(
        self,
        state: ControllerState,
        *,
        auth: Auth | None = None,
        password: Password | None = None,
        accept_tokens: bool = True,
        read_only: bool = False,
        life: float = SESSION_LIFE,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(state=state, read_only=read_only, clock=clock or state.clock)
        self.auth: Auth = auth or Auth(state, self.clock)
        self.tokens: Tokens | None = Tokens(state, self.clock) if accept_tokens else None
        self.limits: LoginLimits = LoginLimits(self.clock)
        self.life = life
        self._password = password
        self._links: OrderedDict[str, float] = OrderedDict()
        self._link_proof = secrets.token_urlsafe(16)
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._session = Cookie("")

    def _use(self, key: bytes) -> Signer:
        made = super()._use(key)
        self._session = Cookie(f"pollwise_session_{made.mark}")
        return made

    def routes(self, web: Web) -> Sequence[BaseRoute]:
        from pollwise.web.pages.login import login_routes

        return login_routes(web, self)

    def ask_for_login(self, request: Request) -> Response:
        root = request.scope.get("root_path", "")
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        asked = "" if here == f"{root}/" or request.method != "GET" else here
        query = f"?{urlencode({'next': asked})}" if asked else ""
        return RedirectResponse(f"{root}/login{query}", status_code=303)

    # Sessions

    async def _found(self, request: Request) -> Viewer | None:
        values = self.signer.opened("session", self._session.read(request))
        if values is None or len(values) != 3:
            return None
        subject, proof, session = map(str, values)
        found = None if session in self._ended else await self._logged_in(subject, proof)
        return None if found is None else replace(found, csrf=self.signer.code("csrf", session))

    async def _logged_in(self, subject: str, proof: str) -> Viewer | None:
        """Who has this subject, if its proof still fits."""
        if subject == "password":
            known = self._password is not None and same(proof, self._password_proof())
            return _BY_PASSWORD if known else None
        if subject == "link":
            return _BY_LINK if same(proof, self._link_proof) else None
        if self.tokens is None:
            return None
        try:
            token = await self.auth.token_of(subject)
        except InvalidToken:
            return None
        return _viewer(token) if same(proof, self._token_proof(token.hash)) else None

    async def log_in(
        self, request: Request, given: str, response: Response, *, only_tokens: bool = False
    ) -> Viewer | None:
        """Begin a session if this is a valid token or the password; None if it is not.

        Raises `TooManySessions`.
        """
        await self.start()
        right = not only_tokens and self._password is not None and self._password.is_it(given)
        token = await self._token(given)
        if token is not None:
            self.limits.begin_session(token.id)
            self._begin(request, response, token.id, self._token_proof(token.hash))
            await self.auth.write_down()  # when the token was last used
            return _viewer(token)
        if right:
            self.limits.begin_session("password")
            self._begin(request, response, "password", self._password_proof())
            return _BY_PASSWORD
        return None

    async def log_in_once(self, request: Request, link: str, response: Response) -> Viewer | None:
        """Begin a session by an address of `one_time`, which is used up."""
        await self.start()
        until = self._links.pop(hash_of(link), 0.0)
        if until <= self.clock.now():
            return None
        self._begin(request, response, "link", self._link_proof)
        return _BY_LINK

    def one_time(self) -> str:
        """The end of an address that logs in as an admin, once and within LINK_LIFE."""
        link = secrets.token_urlsafe(24)
        self._links[hash_of(link)] = self.clock.now() + LINK_LIFE
        if len(self._links) > LINKS_MAX:
            self._links.popitem(last=False)
        return f"/once/{link}"

    def log_out(self, request: Request, response: Response) -> None:
        """End a session; a copy of its cookie is refused from now on too."""
        values = self.signer.opened("session", self._session.read(request))
        if values is not None:
            self._ended[str(values[-1])] = None
            if len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)
        self._session.delete(request, response)

    @property
    def has_password(self) -> bool:
        """True if there is a password to log in with."""
        return self._password is not None

    async def has_logins(self) -> bool:
        """True if there is a password or any token, so that somebody can log in."""
        if self.has_password or self.state is None:
            return self.has_password
        return bool(await self.state.list_tokens(limit=1))

    async def noted_login(self, request: Request, who: str, action: str, detail: str = "") -> None:
        """Write into the audit log who logged in or out, or failed to."""
        await self._note(request, who, action, "web", detail)

    async def _token(self, given: str) -> Token | None:
        """The valid token with this secret, if its scope has pages."""
        if self.tokens is None or not given.startswith(PREFIX):
            return None
        try:
            caller = await self.auth.caller(f"Bearer {given}")
            return await self.auth.token_of(caller.id) if caller.role in INCLUDES else None
        except InvalidToken:
            return None

    def _begin(self, request: Request, response: Response, subject: str, proof: str) -> None:
        session = secrets.token_urlsafe(18)
        value = self.signer.signed("session", [subject, proof, session], self.life)
        self._session.set(request, response, value, self.life)

    def _token_proof(self, token_hash: str) -> str:
        return self.signer.code("token", token_hash)

    def _password_proof(self) -> str:
        return "" if self._password is None else self.signer.code("password", self._password.hash)


_BY_PASSWORD = Viewer("password", "admin", name="Password")
_BY_LINK = Viewer("one-time address", "admin", name="One-time address")


def _viewer(token: Token) -> Viewer:
    scope: Any = token.scope
    return Viewer(f"token:{token.id} ({token.name})", scope, name=token.name)


def check_origin(request: Request) -> None:
    """Raise `Forbidden` if the page of another site sent this request."""
    if not is_from_here(request):
        raise Forbidden(
            "the form was sent from another site. If a proxy is between, let it pass the header "
            "Host on"
        )


def checked_life(life: float) -> float:
    """How long a session lasts, checked."""
    if not 60.0 <= life <= 30 * 86400.0:
        raise ConfigError(f"session = {life:g} s must be from 1 minute to 30 days")
    return life
