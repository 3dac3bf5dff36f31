"""Keys: who may use the API, as which tenant, and whose cached prompts are whose; and who may see the page map.

Knows keys by their digests only. Invariants: a key is compared in a time that tells nothing of it, and is neither
logged nor sent anywhere; requests under different keys never have the same salt, so that none finds another's pages,
and cannot measure by time or by count what another has sent; an API key opens nothing of the page map and changes no
adapters, and the admin key opens nothing else of the API.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError
from server.http.error_answers import error_response
from server.observation.current import current_record
from server.tenant import NO_TENANT, tenant_name

TEXT_PATHS = frozenset({"/tokenize", "/detokenize", "/tokenizer_info"})  # what is guarded beside /v1

LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ADMIN_PATHS = frozenset({LOAD_ADAPTER, UNLOAD_ADAPTER})  # of the API, and no client's to use

DASHBOARD_DATA = "/dashboard/"  # the page at /dashboard itself holds none

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

    @property
    def tenants(self) -> tuple[str, ...]:
        """All that a request can have."""
        return tuple(key.tenant for key in self._keys) or (NO_TENANT,)

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

    def _find(self, authorization: str | None) -> _Key | None:
        if not self._keys:
            return None
        presented = _presented(authorization)
        if presented is None:
            raise _unauthorized("an API key is needed: send the header Authorization: Bearer KEY, or x-api-key: KEY")
        found = None
        for known in self._keys:  # all of them, whichever fits
            if hmac.compare_digest(known.digest, presented):
                found = known
        if found is None:
            raise _unauthorized("the API key is not one of this server's")
        return found


class AdminKey:
    """The key to the data of the page map, and to changes of adapters; without one, `check` lets everybody pass."""

    def __init__(self, key: str | None = None) -> None:
        self._digest = None if key is None else _digest(key.encode())

    def __bool__(self) -> bool:
        return self._digest is not None

    def check(self, authorization: str | None) -> None:
        """ApiError 401 when there is a key and the header does not have it."""
        if self._digest is None:
            return
        presented = _presented(authorization)
        if presented is None:
            message = "the admin key is needed: send the header Authorization: Bearer KEY, or x-api-key: KEY"
            raise _unauthorized(message, "invalid_admin_key")
        if not hmac.compare_digest(self._digest, presented):
            raise _unauthorized("this is not the admin key of this server", "invalid_admin_key")


def _presented(authorization: str | None) -> bytes | None:
    """The digest of the key in a header; None where it has none."""
    scheme, _, key = (authorization or "").partition(" ")
    return _digest(key.strip().encode()) if scheme.lower() == "bearer" and key.strip() else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _unauthorized(message: str, code: str = "invalid_api_key") -> ApiError:
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})


class RequireKeys:
    """ASGI middleware: refuses a request without a valid key for its path, before its body is read.

    A key in the header x-api-key, where clients of /v1/messages put it, is taken for one in Authorization.
    """

    def __init__(self, app: ASGIApp, *, api_keys: ApiKeys, admin_key: AdminKey) -> None:
        self._app = app
        self._api_keys = api_keys
        self._admin_key = admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = _with_authorization(scope)
            try:
                self._check(scope["path"], _header(scope, b"authorization"))
            except ApiError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, authorization: str | None) -> None:
        if path in ADMIN_PATHS:
            self._check_admin(authorization, "adapters are those of all API keys", "to change them")
        elif is_guarded(path):
            tenant = self._api_keys.tenant(authorization)
            if (record := current_record()) is not None:
                record.tenant = tenant
        elif path.startswith(DASHBOARD_DATA):
            self._check_admin(authorization, "the page map shows the requests of all API keys", "to open it")

    def _check_admin(self, authorization: str | None, why: str, what_for: str) -> None:
        if self._api_keys and not self._admin_key:
            message = f"{why}: start the server with --admin-key {what_for}"
            raise ApiError(403, message, code="admin_key_needed")
        self._admin_key.check(authorization)


def is_guarded(path: str) -> bool:
    """Whether a path is of the API, which keys are for."""
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
