"""Special tokens in text: found as llama.cpp's loop finds them, whichever way is quicker, and in passable time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest

from emberd.errors import ModelFileError
from emberd.text.special import SpecialTokens
from emberd.text.template import ChatTemplate, render_to_ids
from emberd.text.tokenizer import Tokenizer
from tiny_gguf import byte_vocab

pytestmark = pytest.mark.slow

NAMES = [
    "<a>",
    "<a>b",
    "b<c",
    "<c>",
    "\n",
    "\n\n",
    "\n\n\n",
    "<un7>",
    "<un70>",
    "<un700>",
    "xy",
    "yx",
]


def cut_one_by_one(
    text: str, names: Sequence[str], protected: Collection[int], strip: Collection[str]
) -> list[str | int]:
    """The longest name first, each in every stretch that is left."""
    pieces: list[tuple[int, str | int]] = [(0, text)]
    for name in sorted(names, key=lambda name: -len(name.encode())):
        cut: list[tuple[int, str | int]] = []
        for start, part in pieces:
            done = at = 0
            while isinstance(part, str) and (at := part.find(name, at)) >= 0:
                end = at + len(name)
                if protected and not protected.isdisjoint(range(start + at, start + end)):
                    at += 1
                    continue
                cut += [(start + done, part[done:at]), (start + at, names.index(name))]
                while name in strip and part[end : end + 1].isspace():
                    end += 1
                done = at = end
            cut.append((start + done, part[done:] if isinstance(part, str) else part))
        pieces = cut
    return [part for _, part in pieces if part != ""]


@pytest.mark.parametrize("step", [0, 256, 1 << 30])
def test_cuts_are_those_of_one_name_after_another(
    step: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberd.text.special._STEP", step)
    strip = {"<a>", "xy"}
    special = SpecialTokens({}, {name: i for i, name in enumerate(NAMES)}, strip)
    parts = [*NAMES, "<", "a", "b", "<u", "n7", "0", ">", " ", "\n", "x", "y"]
    for _ in range(2000):
        text = "".join(rng.choice(parts, int(rng.integers(1, 12))))
        protected = set(rng.integers(0, 40, int(rng.integers(0, 3))).tolist())
        found = special.split(text, control=True, protected=protected)
        assert found == cut_one_by_one(text, NAMES, protected, strip), (text, protected)


@pytest.mark.parametrize("as_control", [True, False])
def test_texts_full_of_the_names_of_a_large_vocabulary(as_control: bool) -> None:
    """Gemma has 6,242 of these. One name after the other took minutes for this text."""
    names = [f"<unused{i}>" for i in range(6000)]
    vocab = byte_vocab(control=names, size=6300)
    metadata = vocab.metadata()
    if not as_control:
        user_defined = {name: 4 for name in names}
        kinds = zip(vocab.tokens, vocab.types, strict=True)
        metadata["tokenizer.ggml.token_type"] = [
            user_defined.get(name, kind) for name, kind in kinds
        ]
    tokenizer = Tokenizer.from_metadata(metadata)
    text = "".join(names) * 10
    ids = [vocab.ids[name] for name in names] * 10
    assert tokenizer.encode(text, add_special=False, parse_special=True) == ids
    template = ChatTemplate("{{ messages[0].content }}")
    typed = render_to_ids(template, tokenizer, [{"role": "user", "content": text}])
    assert typed == (list(text.encode()) if as_control else ids)


def test_a_text_that_begins_or_ends_inside_a_long_name_is_guarded() -> None:
    """Beginnings and ends of names are looked up in order; all of them together would fill memory."""
    names = [f"<|{unit * 500}{i}|>" for unit in ("a-", "b-") for i in range(300)]
    tokenizer = Tokenizer.from_metadata(byte_vocab(control=names, size=1200).metadata())
    head, tail = f"<|{'b-' * 500}2", "99|>"
    assert head + tail in names
    for source, typed in (
        ("{{ messages[0].content }}" + tail, head),
        (head + "{{ messages[0].content }}", tail),
        (head[:500] + "{{ messages[0].content }}" + tail, head[500:]),
    ):
        ids = render_to_ids(ChatTemplate(source), tokenizer, [{"role": "user", "content": typed}])
        assert bytes(ids).decode() == head + tail


def test_tokens_of_any_length_are_not_read() -> None:
    metadata = byte_vocab(pieces=["x" * 4097], size=600).metadata()
    with pytest.raises(ModelFileError, match="token of 4097 characters"):
        Tokenizer.from_metadata(metadata)
