"""The page about tokens: make one, shown once; rotate and revoke."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal

from pollwise.controller.security.tokens import Tokens
from pollwise.controller.state.values import SCOPES, Token
from pollwise.errors import ConfigError
from pollwise.web.view import Refused, ShownOnce, View, Visit

#: How many tokens a page lists.
PAGE = 50
#: How long a new token is valid, as the form offers it; "" for ever.
LIVES = {"30d": "30 days", "90d": "90 days", "365d": "1 year", "": "no end"}
#: What each scope is for, as the form says it.
SCOPE_TEXTS = {
    "read": "read: looks",
    "put": "put: puts jobs over HTTP",
    "operate": "operate: looks and acts",
    "worker": "worker: registers agents",
    "admin": "admin: everything, tokens included",
}


class TokensPage(View):
    """Every token, without its secret."""

    name = "tokens"
    path = "/tokens"
    template = "tokens.html"
    scope = "admin"
    menu = "Tokens"
    actions: ClassVar[Mapping[str, str]] = {
        "token.create": "admin",
        "token.rotate": "admin",
        "token.revoke": "admin",
    }

    def shown(self) -> bool:
        return self.web.access.tokens is not None

    @property
    def _tokens(self) -> Tokens:
        tokens = self.web.access.tokens
        if tokens is None:
            raise Refused("This web interface has no tokens.")
        return tokens

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        state = self.web.access.state
        after = visit.query.get("after", "")[:64] or None
        found = [] if state is None else await state.list_tokens(limit=PAGE + 1, after=after)
        now = self.web.access.clock.epoch()
        listed = [(token, token_state(token, now)) for token in found[:PAGE]]
        return {
            "tokens": listed,
            "next": found[PAGE - 1].id if len(found) > PAGE else None,
            "scopes": {scope: SCOPE_TEXTS[scope] for scope in SCOPES},
            "lives": LIVES,
            "secret": None,
        }

    async def marker(self, visit: Visit) -> Hashable:
        state = self.web.access.state
        after = visit.query.get("after", "")[:64] or None
        return None if state is None else tuple(await state.list_tokens(limit=PAGE, after=after))

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str | ShownOnce:
        if action == "token.create":
            return await self._create(visit, form)
        token_id = form.get("token", "")[:64]
        if action == "token.rotate":
            rotated = await self._tokens.rotate(token_id)
            if rotated is None:
                raise Refused("This token does not exist, or was revoked.")
            self._forget(rotated[0], revoked=False)
            return _shown(*rotated, "has a new secret; the old one is invalid")
        revoked = await self._tokens.revoke(token_id)
        if revoked is None:
            raise Refused("There is no such token.")
        self._forget(revoked, revoked=True)
        return f"The token {revoked.name} ({revoked.id}) is revoked."

    async def _create(self, visit: Visit, form: Mapping[str, str]) -> ShownOnce:
        life = form.get("life", "30d")
        if life not in LIVES:
            raise Refused("Choose how long the token is valid from the list.")
        try:
            made, secret = await self._tokens.make(
                form.get("scope", ""),
                form.get("name", "").strip(),
                expires_in=life or None,
                by=visit.viewer.who,
            )
        except ConfigError as error:
            raise Refused(f"The token was not made: {error}.") from None
        return _shown(made, secret, f"was made, with the scope {made.scope}")

    def _forget(self, token: Token, *, revoked: bool) -> None:
        """Let this process refuse an old secret at once; others do within seconds."""
        auth = getattr(self.web.access, "auth", None)
        if auth is not None:
            auth.forget()
        controller = self.web.sources.controller
        if revoked and controller is not None:
            controller.registry.refuse(f"token:{token.id}")


def token_state(token: Token, now: float) -> Literal["valid", "revoked", "expired"]:
    """Whether a token can be used now."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "valid"


def _shown(token: Token, secret: str, what: str) -> ShownOnce:
    return ShownOnce(f"The token {token.name} ({token.id}) {what}.", {"secret": secret})
