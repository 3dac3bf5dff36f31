"""Fields: typed access to the description of a model, whose errors name the key and the file.

Knows no architectures. The keys are those of Hugging Face's ``config.json``, also where a GGUF file is described;
``names`` then says what such a file calls them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from models.errors import CheckpointError

MAX_LAYERS = 1024
_MISSING = object()


class Fields:
    """One description. Every reader raises CheckpointError for what is missing or of the wrong kind."""

    def __init__(
        self,
        values: Mapping[str, object],
        source: str,
        names: Mapping[str, str] | None = None,
        *,
        is_gguf: bool = False,
    ) -> None:
        self._values = values
        self._names = names or {}
        self.source = source
        self.is_gguf = is_gguf

    def get(self, key: str) -> object:
        """The value, or None when it is missing or null."""
        return self._values.get(key)

    def has(self, key: str) -> bool:
        """Whether the key is there, if only to say null."""
        return key in self._values

    def part(self, key: str) -> Fields | None:
        """The fields of an object under ``key``."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"should be an object and is {value!r}")
        return Fields(value, self.source, is_gguf=self.is_gguf)

    def parts(self) -> list[Fields]:
        """The fields of all objects in here."""
        return [part for key in self._values if (part := self.part(key)) is not None]

    def without(self, *keys: str) -> Fields:
        """The same, but for keys that mean nothing in this family."""
        values = {key: value for key, value in self._values.items() if key not in keys}
        return Fields(values, self.source, self._names, is_gguf=self.is_gguf)

    def renamed(self, names: Mapping[str, str]) -> Fields:
        """The same for a family whose ``config.json`` has other ``names`` for some keys; GGUF files have none such."""
        if self.is_gguf:
            return self
        values = dict(self._values) | {key: self._values[name] for key, name in names.items() if name in self._values}
        return Fields(values, self.source, {**self._names, **names})

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {self._names.get(key, key)} {problem}")

    def integer(self, key: str, default: object = _MISSING) -> int:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(key, f"should be a positive whole number and is {value!r}")
        return value

    def optional_integer(self, key: str) -> int | None:
        return None if self.get(key) is None else self.integer(key)

    def layer_count(self, key: str = "num_hidden_layers") -> int:
        """A number of layers; a damaged one must not become gigabytes of layer descriptions."""
        count = self.integer(key)
        if count > MAX_LAYERS:
            raise self.error(key, f"is {count}, more layers than any model has")
        return count

    def number(self, key: str, default: object = _MISSING) -> float:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(key, f"should be a positive number and is {value!r}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of positive numbers."""
        value = self._required(key, _MISSING)
        if not isinstance(value, list) or not all(
            isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < math.inf for one in value
        ):
            raise self.error(key, "should be a list of positive numbers")
        return tuple(float(one) for one in value)

    def layer_numbers(self, key: str) -> frozenset[int]:
        """Numbers of layers from 0 on; none when the key is missing."""
        value = self.get(key)
        numbers = [] if value is None else value
        if not isinstance(numbers, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in numbers):
            raise self.error(key, f"should be a list of the numbers of layers and is {value!r}")
        return frozenset(numbers)

    def flag(self, key: str, default: bool) -> bool:
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"should be true or false and is {value!r}")
        return value

    def choice(self, key: str, choices: Mapping[str, str], default: str | None = None) -> str:
        """What ``choices`` make of the word under ``key``; another word is not supported."""
        value = self._required(key, _MISSING if default is None else default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(key, f"is {value!r}, which is not supported")
        return choices[value]

    def refuse_unless(self, key: str, *allowed: object) -> None:
        """Refuse a value that the model would have to compute and does not; missing and null are allowed."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.error(key, f"is {value!r}, which is not supported")

    def token_ids(self, key: str) -> tuple[int, ...]:
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(token_id, bool) or not isinstance(token_id, int) for token_id in ids):
            raise self.error(key, f"should be a token id or a list of them and is {value!r}")
        return tuple(dict.fromkeys(ids))

    def layer_kinds(self, key: str, known: tuple[str, ...]) -> list[str] | None:
        """One of ``known`` for each layer, or None when the key is missing."""
        kinds = self.get(key)
        if kinds is None:
            return None
        count = self.layer_count()
        if not isinstance(kinds, list) or len(kinds) != count or any(kind not in known for kind in kinds):
            raise self.error(key, f"should name one of {known} for each of {count} layers")
        return kinds

    def _required(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is None:
            value = default
        if value is _MISSING:
            raise CheckpointError(f"{self.source}: the key {self._names.get(key, key)!r} is missing")
        return value
