"""Sequences that follow a grammar: every output is a word of it, whatever else happens to the sequence."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from engine.messages import Failure
from engine.sampling_params import Grammar, GrammarKind
from scheduler.request import FinishReason, WaitReason

BOS, EOS = 256, 257
PROMPT = [BOS, *b"Once upon a time"]
TOKENS = [*(bytes([byte]) for byte in range(256)), b"", b""]  # of the tiny models; their merges follow


@pytest.fixture(scope="session")
def token_table(tiny_llama_dir: Path) -> list[bytes]:
    """What each token of the tiny models stands for."""
    from server.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(tiny_llama_dir)
    return tokenizer.text_bytes()


@pytest.fixture
def structured(rig: Callable, tiny_llama_dir: Path, token_table: list[bytes]) -> Callable:
    def make(**settings: object) -> object:
        made = rig(tiny_llama_dir, **settings)
        made.engine.use_tokens(token_table)
        made.text = lambda name: b"".join(token_table[one] for one in made.tokens(name)).decode()
        return made

    return make


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def draw(grammar: Grammar, seed: int, temperature: float = 1.5, **fields: object) -> dict[str, object]:
    return {"sampling": {"grammar": grammar, "temperature": temperature, "seed": seed, "ignore_eos": False, **fields}}


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, object]:
    kinds = ["integer", "bounded", "boolean", "null", "string", "pattern", "enum", "const"]
    kind = rng.choice(kinds + ["object", "array", "tuple", "any_of"] * (2 if depth < 2 else 0))
    if kind == "bounded":
        low = rng.randint(-1000, 1000)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 2000)}
    if kind == "string":
        low = rng.randint(0, 3)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 6)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-z]{1,5}$", "^\\d{2}-\\d{2}$", "^(ab|cd)+x?$"])}
    if kind == "enum":
        return {"enum": rng.sample(["red", "grün", 7, None, True, "a\"b", {"k": [1]}], 3)}
    if kind == "const":
        return {"const": rng.choice(["x", 3, [1, "two"], {"a": {"b": None}}])}
    if kind == "object":
        names = rng.sample(["name", "alter", "x y", "ключ", "tags"], rng.randint(0, 4))
        properties = {name: random_schema(rng, depth + 1) for name in names}
        required = [name for name in names if rng.random() < 0.7]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        low = rng.randint(0, 2)
        return {
            "type": "array", "items": random_schema(rng, depth + 1), "minItems": low, "maxItems": low + 2
        }
    if kind == "tuple":
        items = [random_schema(rng, depth + 1) for _ in range(2)]
        return {"type": "array", "prefixItems": items, "minItems": 2, "items": False}
    if kind == "any_of":
        return {"anyOf": [random_schema(rng, depth + 1), random_schema(rng, depth + 1)]}
    return {"type": kind}


def random_regex(rng: random.Random, depth: int = 0) -> str:
    kind = rng.choice(["text", "class", "digits", *["choice", "repeat", "join"] * (depth < 3)])
    if kind == "text":
        return re.escape(rng.choice(["yes", "no", "grün", "/", "a.b", "\n", "日本"]))
    if kind == "class":
        return rng.choice(["[a-f]", "[^a-z]", "[α-ω]", "\\w", "."])
    if kind == "digits":
        return "\\d{1,3}"
    inner = [random_regex(rng, depth + 1) for _ in range(2)]
    if kind == "choice":
        return f"({inner[0]}|{inner[1]})"
    if kind == "repeat":
        return f"({inner[0]}){rng.choice(['?', '{0,3}', '{2}', '*'])}"
    return inner[0] + inner[1]


def check(grammar: Grammar, text: str, reason: FinishReason | None) -> bool:
    """Whether the output ended by itself; then it must be a word of the grammar."""
    assert reason in (FinishReason.STOP, FinishReason.LENGTH), reason
    if reason is FinishReason.LENGTH:
        return False
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        jsonschema.Draft202012Validator(json.loads(grammar.text)).validate(json.loads(text))
    else:
        assert re.fullmatch(grammar.text, text, re.ASCII)
    return True


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_200_random_grammars_are_followed(structured: Callable, async_scheduling: bool) -> None:
    engine = structured(async_scheduling=async_scheduling, max_num_seqs=16, max_queued_requests=500)
    rng = random.Random(6)
    grammars = {}
    for number in range(200):
        grammar = schema(random_schema(rng)) if number % 2 else Grammar(GrammarKind.REGEX, random_regex(rng))
        grammars[f"r{number}"] = grammar
        engine.submit(f"r{number}", PROMPT, 120, **draw(grammar, number, rng.choice([1.0, 2.0])))
    engine.run()
    ended = [check(one, engine.text(name), engine.last(name).finish_reason) for name, one in grammars.items()]
    assert sum(ended) > 150
