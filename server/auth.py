"""API keys: who may use the API, as which tenant, and whose cached prompts are whose.

Knows keys by their digests only. Invariants: a key is compared in a time that tells nothing of it, and is neither
logged nor sent anywhere; requests under different keys never have the same salt, so that none finds another's pages,
and cannot measure by time or by count what another has sent.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError
from server.http.error_answers import error_response
from server.tenant import NO_TENANT, tenant_name

TEXT_PATHS = frozenset({"/tokenize", "/detokenize", "/tokenizer_info"})  # what is guarded beside /v1

SALT_DOMAIN = b"octavo cache salt of an API key\0"


@dataclass(frozen=True, slots=True)
class _Key:
    """What is known of one key."""

    digest: bytes = field(repr=False)
    salt: str = field(repr=False)
    tenant: str


class ApiKeys:
    """The keys of one server; without any, everybody may use it and shares what is cached."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = [
            _Key(_digest(key), hashlib.sha256(SALT_DOMAIN + key).hexdigest(), tenant_name(number))
            for number, key in enumerate((key.encode() for key in keys), 1)
        ]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def salt(self, authorization: str | None, cache_salt: str | None) -> str:
        """The salt of a request with this header and this ``cache_salt`` of its own; "" is what all share.

        ApiError 401 when keys are configured and the header has none of them.
        """
        own = cache_salt or ""
        key = self._find(authorization)
        # the key's part has a fixed length, so no two pairs read the same
        return own if key is None else f"{key.salt}:{own}"

    def tenant(self, authorization: str | None) -> str:
        """Whose share of the server a request with this header counts towards. ApiError 401 as for `salt`."""
        key = self._find(authorization)
        return NO_TENANT if key is None else key.tenant

    def check(self, authorization: str | None) -> None:
        """ApiError 401 when keys are configured and the header has none of them."""
        self._find(authorization)

    def _find(self, authorization: str | None) -> _Key | None:
        if not self._keys:
            return None
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthorized("an API key is needed: send the header Authorization: Bearer KEY, or x-api-key: KEY")
        presented = _digest(key.strip().encode())
        found = None
        for known in self._keys:  # all of them, whichever fits
            if hmac.compare_digest(known.digest, presented):
                found = known
        if found is None:
            raise _unauthorized("the API key is not one of this server's")
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


class RequireApiKey:
    """ASGI middleware: answers 401 to a request for the API without a valid key, before its body is read.

    A key in the header x-api-key, where clients of /v1/messages put it, is taken for one in Authorization.
    """

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_guarded(scope["path"]):
            scope = _with_authorization(scope)
            try:
                self._keys.check(_header(scope, b"authorization"))
            except ApiError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_guarded(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/") or path in TEXT_PATHS


def _with_authorization(scope: Scope) -> Scope:
    """The scope with its key in Authorization, wherever the client has put it."""
    key = _header(scope, b"x-api-key")
    if key is None or _header(scope, b"authorization") is not None:
        return scope
    bearer = (b"authorization", f"Bearer {key}".encode("latin-1"))
    return {**scope, "headers": [*scope["headers"], bearer]}


def _header(scope: Scope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return str(value, "latin-1")
    return None
