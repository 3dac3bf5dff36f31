"""FieldNames: what fields of a chat are called in the API that is translated onto it.

Knows names only. Invariant: an error that a chat raises names the field as the client wrote it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from server.errors import ApiError


class FieldNames:
    """``renamed`` has (pattern, replacement) for beginnings of names of a chat's fields; the first that fits counts."""

    def __init__(self, renamed: Sequence[tuple[str, str]]) -> None:
        self._renamed = [(re.compile(pattern), replacement) for pattern, replacement in renamed]

    def of(self, param: str) -> str:
        """The client's name for a chat's field."""
        for pattern, replacement in self._renamed:
            renamed, found = pattern.subn(replacement, param, count=1) if pattern.match(param) else (param, 0)
            if found:
                return renamed
        return param

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Errors that leave name the client's fields."""
        try:
            yield
        except ApiError as error:
            if error.param is None:
                raise
            param = self.of(error.param)
            message = error.message.replace(error.param, param, 1)
            raise ApiError(error.status, message, param=param, code=error.code, headers=error.headers) from None
