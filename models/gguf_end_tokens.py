"""The tokens at which a chat model of a GGUF file ends its turn, where no key of the file names them.

Knows the markers of published models by their text, as llama.cpp does. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

_TURN_ENDS = frozenset(
    ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|endofturn|>", "<EOT>")
)
_HARMONY_ENDS = frozenset(("<|return|>", "<|call|>"))  # of gpt-oss, in whose answers <|end|> only ends a message
_TEMPLATE = "tokenizer.chat_template"
_TOKENS = "tokenizer.ggml.tokens"


def turn_ends(metadata: Mapping[str, object]) -> list[int]:
    """Their ids, in order; none without a chat template: a base model never learnt the markers in its vocabulary."""
    tokens = metadata[_TOKENS] if _TEMPLATE in metadata and _TOKENS in metadata else None
    if not isinstance(tokens, list):
        return []
    found = {token: token_id for token_id, token in enumerate(tokens) if token in _TURN_ENDS or token in _HARMONY_ENDS}
    is_harmony = found.keys() >= _HARMONY_ENDS
    return sorted(token_id for token, token_id in found.items() if (token in _HARMONY_ENDS) == is_harmony)
