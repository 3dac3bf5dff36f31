"""GrammarCompiler: grammars into matchers over one vocabulary, on a thread of its own, each text once.

    use_tokens(table) -> compile(grammar) -> Future[CompiledGrammar] -> matcher() for each sequence

llguidance lets go of the interpreter's lock while it compiles a grammar, so that steps go on; not while it reads the
vocabulary, which it does once, before the first grammar. Knows tokens as bytes. Invariants: at most so much text is
kept, least recently used first to go; a compiled grammar never changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from engine.block_tables import Array
from engine.grammar_matcher import WORD_BITS, GrammarMasks, GrammarMatcher
from engine.grammar_source import GrammarError, parser_limits, readable, source_of
from engine.sampling_params import Grammar

MOST_KEPT_CHARACTERS = 1 << 20
_CHARACTERS_OF_A_GRAMMAR = 1024  # that one counts for, beside its text


class CompiledGrammar:
    """A grammar over a vocabulary, and what may begin its words."""

    def __init__(self, grammar: Grammar, start: LLMatcher, ends: Array, masks: GrammarMasks) -> None:
        """``ends`` are words with the ids that end an output. Raises GrammarError."""
        self._kind = grammar.kind
        self._start = start
        self._ends = ends
        self._masks = masks
        self._first = np.empty_like(ends)
        if not start.is_error():
            start.unsafe_compute_mask_ptr(self._first.ctypes.data, self._first.nbytes)
        if start.is_error():
            raise GrammarError(readable(start.get_error(), grammar.kind))

    def matcher(self, *, draws_eos: bool) -> GrammarMatcher:
        """For a new sequence; without ``draws_eos`` nothing but the grammar's end is an end."""
        never = None if draws_eos else self._ends
        return GrammarMatcher(self._start.deep_copy(), self._kind, self._first, self._masks, never)


class GrammarCompiler:
    """For a model of ``vocab_size`` tokens, of which ``eos_token_ids`` end an output. ``masks`` are its matchers'."""

    def __init__(
        self, vocab_size: int, eos_token_ids: Iterable[int], most_characters: int = MOST_KEPT_CHARACTERS
    ) -> None:
        self.masks = GrammarMasks()
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(one for one in eos_token_ids if one < vocab_size)
        self._most_characters = most_characters
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokens: Sequence[bytes] | None = None
        self._tokenizer: LLTokenizer | None = None
        self._ends = np.empty(0, dtype=np.int32)
        self._kept: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()
        self._num_characters = 0

    def use_tokens(self, tokens: Sequence[bytes]) -> None:
        """The bytes that each token is inside a text: nothing for what never is. Before the first `compile`."""
        self._tokens = tokens

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """The grammar, compiled when the future is done; its exception is a GrammarError where that can't be."""
        found = self._kept.get(grammar)
        if found is not None:
            self._kept.move_to_end(grammar)
            return found
        compiled = self._kept[grammar] = self._pool.submit(self._compile, grammar)
        self._num_characters += _size(grammar)
        while self._num_characters > self._most_characters and len(self._kept) > 1:
            oldest, _ = self._kept.popitem(last=False)
            self._num_characters -= _size(oldest)
        return compiled

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        source = source_of(grammar)
        if self._tokenizer is None:
            self._tokenizer = self._read_tokens()
        start = LLMatcher(self._tokenizer, source, log_level=0, limits=parser_limits())
        return CompiledGrammar(grammar, start, self._ends, self.masks)

    def _read_tokens(self) -> LLTokenizer:
        if self._tokens is None:
            raise RuntimeError("a grammar came before the tokens")
        tokens = list(self._tokens[: self._vocab_size])
        tokens += [b""] * (self._vocab_size - len(tokens))
        eos = self._eos_token_ids or [self._vocab_size]  # one that no model draws, where there is none
        tokens += [b""] * (max(eos) + 1 - len(tokens))
        bits = np.zeros(-(-len(tokens) // WORD_BITS) * WORD_BITS, dtype=np.uint8)
        bits[eos] = 1
        self._ends = np.packbits(bits, bitorder="little").view(np.int32)
        self._tokens = None
        return LLTokenizer(_Vocabulary(tokens, eos[0]), eos_token=eos)


class _Vocabulary(TokenizerWrapper):
    """What llguidance reads of a vocabulary. It never has text to be tokenized, since no tokens are forced."""

    def __init__(self, tokens: Sequence[bytes], eos_token_id: int) -> None:
        self.is_tokenizer_wrapper = True
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.special_token_ids = ()

    def __call__(self, text: bytes | str) -> list[int]:
        raise NotImplementedError


def _size(grammar: Grammar) -> int:
    return len(grammar.text) + _CHARACTERS_OF_A_GRAMMAR
