"""Loads of known shape: how many requests, how many at once, how long in and out, how much of the prompt they share.

Makes the prompts too, from random common words. Does not know HTTP or time. Invariants: the same workload, seed and
word source give the same prompts; two seeds share no prefix, so that a prefix cache helps inside a repeat and never
across repeats; every prompt has at least one token beyond the shared prefix.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Prompt = str | list[int]

# One token each in the vocabularies of the usual model families, when a space stands before the word.
_WORDS = """
about above across after again against almost alone along already also always among another answer around because
become before began behind being below better between beyond black board body book both bring brought build built
called came cannot carry center certain change check children city class clear close cold color come common complete
could country course cover cross dark develop different direct door down draw dream drive during each early earth east
easy eight either else end enough even ever every example face fact family farm father feel field figure final find
fire first five floor follow food force form found four free friend from front full game gave general give gold gone
good great green ground group grow half hand happen hard have head hear heat help here high hold home horse hour house
however human hundred idea inch interest island keep kind king know land language large last late laugh learn leave
left letter level life light line list listen little live long look made main make many mark matter mean measure might
mile mind minute money moon more morning most mother mountain move much music must name near need never next night
north note nothing notice number object ocean often once only open order other over page paper part pass pattern
people perhaps person picture piece place plain plan plane plant play point port power press problem produce product
pull question quick rain reach read ready real reason record red remember rest right river road rock room round rule
said same school science second seem self sentence serve several shape ship short should show side simple since size
sleep slow small snow some song soon sound south space special stand star start state stay step still stood stop story
strong study such summer sure surface system table take talk teach tell test than that their them then there these
they thing think this those though thought thousand three through time together took town travel tree true turn under
unit until usual very voice wait walk wall want warm watch water week weight well went were west what wheel when where
which while white whole will wind window winter with wonder wood word work world would write year young your
"""
COMMON_WORDS = tuple(_WORDS.split())


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One load. Lengths are in tokens; ``input_jitter`` makes prompts up to that much shorter or longer."""

    name: str
    requests: int
    concurrency: int
    input_tokens: int
    output_tokens: int
    input_jitter: int = 0
    shared_tokens: int = 0

    def __post_init__(self) -> None:
        for field in ("requests", "concurrency", "input_tokens", "output_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"workload {self.name}: {field} must be at least 1, not {getattr(self, field)}")
        if self.input_jitter < 0 or self.shared_tokens < 0:
            raise ValueError(f"workload {self.name}: input_jitter and shared_tokens must not be negative")
        if self.shared_tokens + self.input_jitter >= self.input_tokens:
            raise ValueError(
                f"workload {self.name}: input_tokens ({self.input_tokens}) must exceed "
                f"shared_tokens + input_jitter ({self.shared_tokens} + {self.input_jitter})"
            )


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="W1", requests=4, concurrency=1, input_tokens=128, output_tokens=128),
        Workload(name="W2", requests=16, concurrency=8, input_tokens=256, output_tokens=128),
        Workload(name="W3", requests=64, concurrency=32, input_tokens=128, output_tokens=64, input_jitter=16),
        Workload(name="W4", requests=24, concurrency=4, input_tokens=1056, output_tokens=32, shared_tokens=1024),
        Workload(name="W5", requests=1, concurrency=1, input_tokens=4000, output_tokens=64),
    )
}


class PromptSource(Protocol):
    """Makes prompts of a wanted length in tokens, whatever the server adds by itself included."""

    @property
    def special_tokens(self) -> int:
        """How many of a prompt's tokens are not words: BOS, for most models."""

    def draw(self, rng: random.Random, count: int) -> list[int]:
        """Draw ``count`` words, as numbers of this source."""

    def prompt(self, drawn: Sequence[int]) -> Prompt:
        """The words drawn, as a server takes them."""


@dataclass(frozen=True)
class WordPrompts:
    """Prompts as text. The lengths are right where each common word is one token and the specials are counted right."""

    special_tokens: int = 0
    words: tuple[str, ...] = COMMON_WORDS

    def draw(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(range(len(self.words)), k=count)

    def prompt(self, drawn: Sequence[int]) -> Prompt:
        return "".join(" " + self.words[index] for index in drawn)


@dataclass(frozen=True)
class TokenPrompts:
    """Prompts as token ids: the lengths are exact, and no server spends time on tokenizing."""

    prefix: tuple[int, ...]
    ids: tuple[int, ...]

    @classmethod
    def from_file(cls, path: Path) -> TokenPrompts:
        """Read a ``tokenizer.json`` and keep the common words that it has as one token.

        Raises OSError if there is no such file, ValueError if it is no tokenizer or has fewer than 50 of the words.
        """
        from tokenizers import Tokenizer

        text = path.read_text(encoding="utf-8")
        try:
            tokenizer: Tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library raises no narrower one
            raise ValueError(f"{path} is no tokenizer.json: {error}") from error
        bare = tokenizer.encode(" the", add_special_tokens=False).ids
        full = tokenizer.encode(" the").ids
        prefix = full[: len(full) - len(bare)] if full[len(full) - len(bare) :] == bare else []
        ids = [tuple(tokenizer.encode(" " + word, add_special_tokens=False).ids) for word in COMMON_WORDS]
        uses = Counter(ids)  # an unknown-token id stands for several words
        single = tuple(word[0] for word in ids if len(word) == 1 and uses[word] == 1)
        if len(single) < 50:
            raise ValueError(f"{path}: only {len(single)} common words are one token; leave --tokenizer out")
        return cls(prefix=tuple(prefix), ids=single)

    @property
    def special_tokens(self) -> int:
        return len(self.prefix)

    def draw(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(self.ids, k=count)

    def prompt(self, drawn: Sequence[int]) -> Prompt:
        return [*self.prefix, *drawn]


def make_prompts(workload: Workload, source: PromptSource, seed: int) -> list[Prompt]:
    """Make the prompts of one repeat, ``workload.requests`` of them."""
    rng = random.Random(f"{workload.name} {seed}")
    shared = source.draw(rng, max(0, workload.shared_tokens - source.special_tokens))
    prompts = []
    for _ in range(workload.requests):
        length = workload.input_tokens + rng.randint(-workload.input_jitter, workload.input_jitter)
        own = max(1, length - source.special_tokens - len(shared))
        prompts.append(source.prompt(shared + source.draw(rng, own)))
    return prompts
