"""DirectSend: lets what a stream sends bypass the middleware, which looks at the start of a response only.

Each layer would cost a coroutine for every token of every stream. Invariant: the start of a response never goes past
the middleware.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

SCOPE_KEY = "octavo.direct_send"


class DirectSend:
    """Outermost ASGI middleware: remembers the server's own ``send``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SCOPE_KEY] = send
        await self._app(scope, receive, send)


def direct_send(scope: Scope) -> Send | None:
    """For the parts of a body, once its start was sent; None where nobody remembered it."""
    send: Send | None = scope.get(SCOPE_KEY)
    return send
