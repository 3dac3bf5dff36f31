"""Contents are texts or parts with nothing but a text."""

from __future__ import annotations

import pytest

from server.openai.content_parts import read_text

EMPTY = frozenset({"annotations"})
ANY = frozenset({"logprobs"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "said", "text": "b"}], "ab"),
        ([{"type": "text", "text": "a", "annotations": [], "logprobs": [1]}], "a"),
    ],
)
def test_texts_are_joined(value, text) -> None:
    assert read_text(value, kinds=("text", "said"), neutral=EMPTY, ignored=ANY) == text


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "must be a string or a list of text parts"),
        ({"type": "text", "text": "a"}, "must be a string or a list of text parts"),
        (["a"], 'a content part is an object like {"type": "text", "text": "..."}'),
        ([{"text": "a"}], 'a content part is an object like {"type": "text", "text": "..."}'),
        ([{"type": "image_url"}], "unsupported content part type 'image_url': this server reads text only"),
        ([{"type": "text"}], 'a part of the type text has a "text", which is a string, and no other field'),
        ([{"type": "text", "text": 5}], 'a part of the type text has a "text", which is a string, and no other field'),
        (
            [{"type": "text", "text": "a", "annotations": [1]}],
            'a part of the type text has a "text", which is a string, and no other field',
        ),
        (
            [{"type": "text", "text": "a", "more": None}],
            'a part of the type text has a "text", which is a string, and no other field',
        ),
    ],
)
def test_what_is_no_text_is_refused_in_words(value, problem) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - all of its words are compared
        read_text(value, neutral=EMPTY, ignored=ANY)
    assert str(error.value) == problem
