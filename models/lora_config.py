"""LoraConfig: what ``adapter_config.json`` of a LoRA adapter in PEFT's layout says (Hu et al., 2021).

Knows which settings change what is computed: those that Octavo does not compute are refused, by key and file, and those
that only mattered in training are passed over. Reads no weight and imports no torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models.errors import CheckpointError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"
_MAX_BYTES = 1 << 20
_REPEATS = re.compile(r"[*+{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_MAX_REPEATS = 3  # in one pattern; more of them, or groups of them, can take for ever to match

# Settings that change what is computed, with the values that ask for nothing, and what they are otherwise.
_NOT_COMPUTED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "use_dora": ((None, False), "DoRA"),
    "bias": ((None, "none"), "biases that were trained with the adapter"),
    "lora_bias": ((None, False), "biases of the adapter's own"),
    "modules_to_save": ((None, []), "whole weights beside the adapter"),
    "target_parameters": ((None, []), "adapters of parameters that are no linear layer's"),
    "trainable_token_indices": ((None, [], {}), "rows of the embedding"),
    "layer_replication": ((None, []), "a model with layers repeated"),
    "use_qalora": ((None, False), "QA-LoRA"),
    "alora_invocation_tokens": ((None, []), "an adapter that some tokens switch on"),
    "arrow_config": ((None,), "a mixture of adapters"),
}


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """``rank`` and ``alpha`` of each part, unless the first pattern that its name ends with says otherwise."""

    source: Path
    rank: int
    alpha: float
    is_rank_stabilised: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    @classmethod
    def read(cls, directory: Path) -> LoraConfig:
        """The configuration in ``directory``. Raises CheckpointError that names the file, and the key."""
        source = directory / CONFIG_FILE
        fields = _read_object(source)
        kind = fields.get("peft_type")
        if kind != "LORA":
            raise CheckpointError(f"{source}: peft_type is {kind!r}, and only 'LORA' can be served")
        for key, (neutral, what) in _NOT_COMPUTED.items():
            value = fields.get(key)
            if not any(value == nothing and type(value) is type(nothing) for nothing in neutral):
                raise CheckpointError(f"{source}: {key} is {_shown(value)}, and {what} cannot be served")
        return cls(
            source,
            _rank(source, "r", fields.get("r")),
            _alpha(source, "lora_alpha", fields.get("lora_alpha", 8)),
            fields.get("use_rslora") is True,
            {
                key: _rank(source, f"rank_pattern.{key}", value)
                for key, value in _patterns(source, fields, "rank").items()
            },
            {
                key: _alpha(source, f"alpha_pattern.{key}", value)
                for key, value in _patterns(source, fields, "alpha").items()
            },
        )

    def rank_of(self, module: str) -> int:
        """Rank of the adapter of a module, by its full name."""
        pattern = _matching(self.rank_pattern, module)
        return self.rank if pattern is None else self.rank_pattern[pattern]

    def scale_of(self, module: str) -> float:
        """What its product is multiplied with: alpha / r, or alpha / sqrt(r) where that is rank-stabilised.

        The latter is of Kalajdzievski, 2023.
        """
        pattern = _matching(self.alpha_pattern, module)
        alpha = self.alpha if pattern is None else self.alpha_pattern[pattern]
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.is_rank_stabilised else alpha / rank


def _matching(patterns: Mapping[str, object], module: str) -> str | None:
    """The first pattern, a regular expression, that is ``module`` or the end of it from one of its dots on."""
    return next((pattern for pattern in patterns if re.fullmatch(_at_the_end(pattern), module)), None)


def _at_the_end(pattern: str) -> str:
    return rf"(?:.*\.)?(?:{pattern})"


def _read_object(source: Path) -> dict[str, object]:
    try:
        is_file, size = source.is_file(), source.stat().st_size
        if not is_file or size > _MAX_BYTES:  # a pipe would be waited for, and a device never ends
            raise CheckpointError(f"{source} is {f'{size} bytes long' if is_file else 'not a file'}")
        fields = json.loads(source.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{source.parent} has no {CONFIG_FILE}: it is no adapter in PEFT's layout") from None
    except OSError as error:
        raise CheckpointError(f"{source} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise CheckpointError(f"{source} is nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{source} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise CheckpointError(f"{source} should hold a JSON object")
    return fields


def _patterns(source: Path, fields: Mapping[str, object], what: str) -> Mapping[str, object]:
    key = f"{what}_pattern"
    patterns = fields.get(key) or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"{source}: {key} is {_shown(patterns)}, and should be an object")
    for pattern in patterns:
        try:
            re.compile(pattern)
            re.compile(_at_the_end(pattern))
        except (re.error, OverflowError, RecursionError) as error:
            raise CheckpointError(f"{source}: {key} has {pattern!r}, which is no regular expression: {error}") from None
        if _REPEATED_GROUP.search(pattern) or len(_REPEATS.findall(pattern)) > _MAX_REPEATS:
            raise CheckpointError(
                f"{source}: {key} has {pattern!r}, which repeats groups, or more than {_MAX_REPEATS} times"
            )
    return patterns


def _rank(source: Path, key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{source}: {key} is {_shown(value)}, and should be a number of at least 1")
    return value


def _alpha(source: Path, key: str, value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
    except OverflowError:  # of an integer beyond every float
        pass
    raise CheckpointError(f"{source}: {key} is {_shown(value)}, and should be a number")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
