"""Tenants: whose share of the server a request counts towards, one for each API key."""

from __future__ import annotations

NO_TENANT = ""  # of all requests to a server without keys


def tenant_name(number: int) -> str:
    """The tenant of the API key that was given as the ``number``-th, from 1: a name that tells nothing of the key."""
    return f"key-{number}"
