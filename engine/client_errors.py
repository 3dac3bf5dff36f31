"""What an `EngineClient` raises, by what its caller can do about it."""

from __future__ import annotations


class EngineError(Exception):
    """Base of what the client raises; the message is fit for a user."""


class EngineStartError(EngineError):
    """The engine could not start."""


class EngineUnavailable(EngineError):
    """The engine is not serving now (starting, restarting, failed, closed): try again later."""


class EngineDied(EngineError):
    """The engine process ended while the request was in flight."""


class RequestTooLarge(EngineError):
    """The request can never run here. ``code`` is "context_length_exceeded" or "kv_capacity_exceeded"."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class AdapterRefused(EngineError):
    """An adapter was not loaded, or not there to be unloaded. ``code`` as in `AdapterAnswer`."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
