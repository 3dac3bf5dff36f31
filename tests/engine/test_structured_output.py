"""Sequences that follow a grammar: every output is a word of it, whatever else happens to the sequence."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from llguidance import LLParserLimits

from engine import grammar_compiler
from engine.sampling_params import Grammar, GrammarKind
from scheduler.request import FinishReason, RequestStatus, WaitReason

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
        return {"enum": rng.sample(["red", "grün", 7, None, True, 'a"b', {"k": [1]}], 3)}
    if kind == "const":
        return {"const": rng.choice(["x", 3, [1, "two"], {"a": {"b": None}}])}
    if kind == "object":
        names = rng.sample(["name", "alter", "x y", "ключ", "tags"], rng.randint(0, 4))
        properties = {name: random_schema(rng, depth + 1) for name in names}
        required = [name for name in names if rng.random() < 0.7]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        low = rng.randint(0, 2)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": low, "maxItems": low + 2}
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
        return rng.choice(["[a-f]", "[^a-z]", "[ぁ-ん]", "\\w", "."])
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


PERSON = schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 200}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def test_under_preemption_each_output_is_what_it_is_alone(structured: Callable) -> None:
    alone = structured()
    names = [f"r{number}" for number in range(6)]
    for number, name in enumerate(names):
        alone.alone(name, PROMPT, 90, **draw(PERSON, number))
    crowded = structured(num_gpu_blocks_override=12, watermark_tokens=0, max_model_len=150)
    for number, name in enumerate(names):
        crowded.submit(name, PROMPT, 90, **draw(PERSON, number))
    crowded.run()
    assert crowded.stats.num_preemptions > 0
    assert {name: crowded.text(name) for name in names} == {name: alone.text(name) for name in names}
    assert sum(check(PERSON, crowded.text(name), crowded.last(name).finish_reason) for name in names) > 2


def test_samples_of_a_prompt_each_follow_the_grammar_by_themselves(structured: Callable) -> None:
    engine = structured()
    engine.submit("a", PROMPT, 120, children=["b", "c", "d"], **draw(PERSON, 7))
    engine.run()
    assert all(check(PERSON, engine.text(name), engine.last(name).finish_reason) for name in "abcd")
    assert len({engine.text(name) for name in "abcd"}) == 4


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_c02_rows_with_and_without_a_grammar_are_what_they_are_alone(
    structured: Callable, async_scheduling: bool
) -> None:
    requests = {
        "greedy": {"sampling": {"temperature": 0.0}},
        "drawn": {"sampling": {"temperature": 1.0, "top_p": 0.9, "seed": 3}},
        "structured": draw(PERSON, 5, top_p=0.9),
    }
    alone = structured()
    expected = {name: alone.alone(name, PROMPT, 60, **fields) for name, fields in requests.items()}
    together = structured(async_scheduling=async_scheduling)
    for name, fields in requests.items():
        together.submit(name, PROMPT, 60, **fields)
    together.run()
    assert {name: together.tokens(name) for name in requests} == expected


def test_nothing_is_drawn_behind_an_output_that_nothing_can_follow(structured: Callable) -> None:
    engine = structured()
    engine.submit("a", PROMPT, 3, **draw(Grammar(GrammarKind.CHOICE, '["yes"]'), 1))
    engine.run()
    assert (engine.text("a"), engine.last("a").finish_reason) == ("yes", FinishReason.STOP)  # not length, nor EOS
    assert engine.last("a").ledger is not None


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 40}])
def test_an_output_that_may_end_goes_on_where_eos_is_not_drawn(structured: Callable, fields: dict) -> None:
    engine = structured()
    engine.submit("a", PROMPT, 50, **draw(Grammar(GrammarKind.REGEX, "[a-z]{0,45}"), 1, **fields))
    engine.submit("b", PROMPT, 50, **draw(Grammar(GrammarKind.REGEX, ""), 1, **fields))
    engine.run()
    assert re.fullmatch("[a-z]{40,45}", engine.text("a"))
    assert engine.last("a").finish_reason is FinishReason.STOP
    assert (engine.text("b"), engine.last("b").finish_reason) == ("", FinishReason.STOP)


def test_e07_any_json_is_a_whole_value_or_cut_by_the_limit(structured: Callable) -> None:
    engine = structured(max_num_seqs=16)
    names = [f"r{number}" for number in range(16)]
    for number, name in enumerate(names):
        engine.submit(name, PROMPT, 64, **draw(schema({}), number))
    engine.run()
    for name in names:
        assert len(engine.tokens(name)) <= 64
        check(schema({}), engine.text(name), engine.last(name).finish_reason)


def test_control_tokens_are_in_no_output(structured: Callable) -> None:
    engine = structured()
    bias = {BOS: 100.0, EOS: 100.0}
    engine.submit("a", PROMPT, 20, **draw(Grammar(GrammarKind.REGEX, "(.|\\n){20}"), 1, logit_bias=bias))
    engine.run()
    assert not {BOS, EOS} & set(engine.tokens("a"))


@pytest.mark.parametrize(
    ("grammar", "code", "message"),
    [
        (Grammar(GrammarKind.REGEX, "("), "invalid_grammar", "unclosed group"),
        (Grammar(GrammarKind.LARK, "start: missing"), "invalid_grammar", 'unknown name: "missing"'),
        (Grammar(GrammarKind.LARK, "start: <|unheard|>"), "invalid_grammar", "it cannot be compiled"),
        (schema({"type": "hiccup"}), "invalid_grammar", "Invalid type: hiccup"),
        (schema({"not": {}}), "invalid_grammar", 'Unimplemented keys: ["not"]'),
    ],
)
def test_e05_what_cannot_be_compiled_fails_alone(
    structured: Callable, grammar: Grammar, code: str, message: str
) -> None:
    engine = structured()
    engine.submit("bad", PROMPT, 20, children=["child"], **draw(grammar, 1))
    engine.submit("good", PROMPT, 90, **draw(PERSON, 1))
    engine.submit("other", PROMPT, 5)
    engine.run()
    for name in ("bad", "child"):
        assert engine.last(name).failure.code == code
        assert message in engine.last(name).failure.message
    assert check(PERSON, engine.text("good"), engine.last("good").finish_reason)
    assert len(engine.tokens("other")) == 5


class Compiling:
    """Holds back what a compiler does until it is let go."""

    def __init__(self, engine: object, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        compiler = engine.engine._compiler
        compile_one = compiler._compile
        monkeypatch.setattr(compiler, "_compile", lambda grammar: self.gate.wait(60) and compile_one(grammar))


def test_a_request_waits_for_its_grammar_and_nobody_waits_for_it(
    structured: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = structured()
    compiling = Compiling(engine, monkeypatch)
    engine.submit("waits", PROMPT, 90, **draw(PERSON, 1))
    engine.submit("runs", PROMPT, 3)
    while "runs" not in engine.deltas or engine.last("runs").finish_reason is None:
        engine.step()
    assert engine.engine.has_work
    stats = engine.stats
    assert (stats.waiting, stats.waiting_by_reason[WaitReason.GRAMMAR]) == (1, 1)
    assert stats.longest_wait_seconds > 0
    explanation = engine.engine.explain("waits")
    assert (explanation.status, explanation.wait_reason) == (RequestStatus.WAITING, WaitReason.GRAMMAR)
    assert "its grammar is being compiled" in explanation.text
    report = engine.engine.read_sequence("waits")
    assert report.pages == {"full": []}
    assert report.ledger.queue_seconds == report.explanation.seconds_since_arrival > 0.0
    [row] = engine.engine.read_pages(1).sequences
    assert (row.request_id, row.status, row.wait_reason) == ("waits", RequestStatus.WAITING, WaitReason.GRAMMAR)
    assert (row.position, row.handle, row.num_prompt_tokens) == (None, 0, len(PROMPT))
    compiling.gate.set()
    engine.run()
    assert check(PERSON, engine.text("waits"), engine.last("waits").finish_reason)


def test_a_request_that_waits_for_its_grammar_can_be_aborted_and_times_out(
    structured: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = structured()
    compiling = Compiling(engine, monkeypatch)
    engine.submit("family", PROMPT, 90, children=["stays"], **draw(PERSON, 1))
    engine.submit("late", PROMPT, 90, timeout=1e-6, **draw(PERSON, 1))
    engine.engine.abort(["family"])
    engine.step()
    assert engine.last("family").finish_reason is FinishReason.ABORT
    assert engine.last("late").failure.code == "timeout"
    for name in ("family", "late"):
        ledger = engine.last(name).ledger
        assert ledger.queue_seconds > 0.0
        assert (ledger.prefill_seconds, ledger.page_seconds) == (None, 0.0)
    assert engine.stats.refusals["timeout"] == 1
    compiling.gate.set()
    engine.run()
    assert check(PERSON, engine.text("stays"), engine.last("stays").finish_reason)


def test_time_spent_waiting_for_a_grammar_counts(structured: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = structured()
    compiling = Compiling(engine, monkeypatch)
    clock = [100.0]
    monkeypatch.setattr(engine.engine._grammars, "_clock", lambda: clock[0])
    for part in (engine.engine.scheduler, engine.engine.scheduler.planner):
        monkeypatch.setattr(part, "_clock", lambda: clock[0])
    engine.submit("late", PROMPT, 90, timeout=5.0, **draw(PERSON, 1))
    clock[0] += 4.0
    compiling.gate.set()
    while "late" not in engine.deltas:
        engine.step()
    clock[0] += 2.0
    engine.run()
    assert (engine.last("late").failure.code, engine.last("late").failure.started) == ("timeout", True)
    ledger = engine.last("late").ledger
    assert (ledger.queue_seconds, ledger.prefill_seconds, ledger.decode_seconds) == (4.0, 0.0, 2.0)


def test_a_grammar_that_gets_too_complex_fails_alone(structured: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = LLParserLimits(step_max_items=60, verbose_errors=False)
    monkeypatch.setattr(grammar_compiler, "parser_limits", lambda: limits)
    engine = structured()
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(300)}}
    engine.submit("hard", PROMPT, 90, **draw(schema({"type": "array", "items": many, "minItems": 1}), 1))
    engine.submit("other", PROMPT, 5)
    engine.run()
    assert engine.text("hard").strip() == "["
    assert engine.last("hard").failure.code == "invalid_grammar"
    assert "too complex" in engine.last("hard").failure.message
    assert len(engine.tokens("other")) == 5
