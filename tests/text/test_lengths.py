"""Prompts that cannot fit are found without tokenizing all of them, and no other is refused (K10)."""

from __future__ import annotations

import numpy as np
import pytest
from text_vocabularies import byte_level, random_text, spm

from emberd.errors import ContextOverflowError
from emberd.text.lengths import beginning, refuse_overlong
from emberd.text.tokenizer import Tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte-level", "spm"])
def test_the_number_told_is_a_lower_bound(kind: str, rng: np.random.Generator) -> None:
    data = byte_level(["a b"]) if kind == "byte-level" else spm({"ab": -1.0}, {})
    tokenizer = Tokenizer.from_metadata(data)
    text = random_text(rng, 80_000)
    with pytest.raises(ContextOverflowError, match="at least") as caught:
        refuse_overlong(tokenizer, text, 1000, "prompt")
    count = len(tokenizer.encode_prompt(text))
    assert 1000 <= caught.value.num_prompt_tokens < count
    assert (caught.value.context_length, caught.value.param) == (1000, "prompt")


@pytest.mark.parametrize("length", [16, 20, 64])
def test_text_of_long_tokens_that_fits_is_not_refused(length: int) -> None:
    """A run of one letter, of which one token holds many."""
    name = "a" * length
    tokenizer = Tokenizer.from_metadata(byte_level(user_defined=[name]))
    prompt = name * 9000
    assert len(tokenizer.encode_prompt(prompt)) == 9000
    refuse_overlong(tokenizer, prompt, 9001, "prompt")
    with pytest.raises(ContextOverflowError):
        refuse_overlong(tokenizer, prompt * 2, 9001, "prompt")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte-level", "spm"])
def test_the_beginning_of_a_long_text_begins_with_its_tokens(
    kind: str, rng: np.random.Generator
) -> None:
    data = byte_level(["a b"]) if kind == "byte-level" else spm({"ab": -1.0}, {})
    tokenizer = Tokenizer.from_metadata(data)
    text = random_text(rng, 200_000)
    begun = beginning(tokenizer, text, 1000)
    assert len(begun) < 100_000 and text.startswith(begun)
    ids = tokenizer.encode_prompt(text)
    assert tokenizer.encode_prompt(begun)[:1000] == ids[:1000]
    assert len(tokenizer.encode_prompt(begun)) > 1000
    for whole in (text[:8000], text):
        assert beginning(tokenizer, whole, len(ids)) == whole
