"""What can go wrong between text and token ids, as one sentence a user can act on.

Knows nothing of HTTP: whoever catches these decides on the status code.
"""

from __future__ import annotations


class TextError(ValueError):
    """Base of every error raised by this package."""


class TokenizerError(TextError):
    """A vocabulary that cannot be loaded, or a text that cannot be encoded."""


class ChatTemplateError(TextError):
    """A chat template that cannot be found or compiled, or that rejects the conversation."""
