"""Tokenizers from metadata: rules of special tokens, spaces and bytes, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from text_vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    byte_level,
    metadata,
    random_text,
    spm,
)

from emberd.errors import ModelFileError, NotSupportedError
from emberd.text.tokenizer import Tokenizer

PRE_TOKENIZERS = ("default", "gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-v3", "gpt-4o")


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in ids]


def encoded(tokenizer: Tokenizer, text: str, parse_special: bool = False) -> list[str]:
    return texts(tokenizer, tokenizer.encode(text, add_special=False, parse_special=parse_special))


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_byte_level_text_comes_back(pre: str, rng: np.random.Generator) -> None:
    merges = ["a b", "ab c", "Ġ a", "Ġ Ġ", "1 2", "Ã ©"]
    tokenizer = Tokenizer.from_metadata(byte_level(merges, ["<|end|>"], pre=pre))
    for length in (0, 1, 2, 40):
        text = random_text(rng, length)
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert tokenizer.decode(ids) == text


def test_merges_follow_their_rank_inside_words() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(["b c", "a b", "Ġ a", "c Ġ"]))
    assert encoded(tokenizer, "abc") == ["a", "bc"]
    assert encoded(tokenizer, "c a") == ["c", "Ġa"]  # "c Ġ" would reach over a word's end


def test_a_whole_word_token_is_taken_where_merges_are_ignored() -> None:
    tokens = byte_level(["a b"], pre="llama-bpe")
    tokens["tokenizer.ggml.tokens"].append("abc")
    tokens["tokenizer.ggml.token_type"].append(NORMAL)
    assert encoded(Tokenizer.from_metadata(tokens), "abc") == ["abc"]
    tokens["tokenizer.ggml.pre"] = "gpt-2"
    assert encoded(Tokenizer.from_metadata(tokens), "abc") == ["ab", "c"]


def test_bad_merges_are_passed_over() -> None:
    good = byte_level(["a b"])
    bad = byte_level(["a b"])
    bad["tokenizer.ggml.merges"] = ["", "ab", "x yz w", "q r", "a b", "a b"]
    assert encoded(Tokenizer.from_metadata(bad), "abqr") == ["ab", "q", "r"]
    assert encoded(Tokenizer.from_metadata(good), "abqr") == ["ab", "q", "r"]


def test_control_tokens_are_read_only_when_asked_for_and_user_defined_always() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level([], ["<|x|>", "<|x|>y"], ["<tool>"]))
    text = "a<|x|>y<tool>"
    assert encoded(tokenizer, text) == [*"a<|x|>y", "<tool>"]
    assert encoded(tokenizer, text, parse_special=True) == ["a", "<|x|>y", "<tool>"]


def test_the_longest_special_token_is_found_first_wherever_it_is() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level([], ["<ab", "bcd>"]))
    assert encoded(tokenizer, "<abcd>", parse_special=True) == ["<", "a", "bcd>"]


@pytest.mark.parametrize("given", [True, False])
def test_tokens_to_fill_in_with_are_control_tokens_unless_a_key_names_another(given: bool) -> None:
    """As llama.cpp has it, whatever type the file gives them."""
    keys = byte_level(user_defined=["<fim_prefix>", "<fim_suffix>"])
    if given:
        keys["tokenizer.ggml.fim_pre_token_id"] = 0
    tokenizer = Tokenizer.from_metadata(keys)
    plain = ["<fim_prefix>"] if given else list("<fim_prefix>")
    assert encoded(tokenizer, "<fim_prefix><fim_suffix>") == [*plain, *"<fim_suffix>"]
    read = encoded(tokenizer, "<fim_prefix><fim_suffix>", parse_special=True)
    assert read == ["<fim_prefix>", "<fim_suffix>"]


@pytest.mark.parametrize("name", ["Phi-3-mini-4k-instruct", "phi3", "Llama 3", None])
def test_white_space_behind_special_tokens_goes_in_phi_3(name: str | None) -> None:
    """As llama.cpp, which knows the model by its name; not behind those that are no part of a template."""
    keys = byte_level(control=["<|user|>", "<s>"], user_defined=["<tool>"])
    tokenizer = Tokenizer.from_metadata(keys | ({"general.name": name} if name else {}))
    found = encoded(tokenizer, "<s> a<|user|>\n b<tool>\t<|user|> \r\n", parse_special=True)
    taken = ["<s>", "Ġ", "a", "<|user|>", "b", "<tool>", "<|user|>"]
    kept = ["<s>", *"Ġa", "<|user|>", *"ĊĠb", "<tool>", "ĉ", "<|user|>", *"ĠčĊ"]
    assert found == (taken if name and name.lower().startswith("phi") else kept)


def test_protected_places_are_no_control_tokens() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level([], ["<|x|>"], ["<u>"]))
    ids = tokenizer.encode(
        "<|x|><|x|><u>", add_special=False, parse_special=True, protected={7, 10, 11}
    )
    assert texts(tokenizer, ids) == ["<|x|>", *"<|x|>", "<u>"]


@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_and_eos_are_added_as_the_file_says(add_bos: bool) -> None:
    tokenizer = Tokenizer.from_metadata(
        byte_level(
            control=["<s>", "<e>"],
            bos_token_id="<s>",
            eos_token_id="<e>",
            add_bos_token=add_bos,
            add_eos_token=not add_bos,
        )
    )
    ids = tokenizer.encode("a", add_special=True, parse_special=False)
    assert texts(tokenizer, ids) == (["<s>", "a"] if add_bos else ["a", "<e>"])
    assert encoded(tokenizer, "a") == ["a"]


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("written", [True, False])
def test_k19_a_prompt_begins_with_one_bos(add_bos: bool, written: bool) -> None:
    tokenizer = Tokenizer.from_metadata(
        byte_level(control=["<s>"], bos_token_id="<s>", add_bos_token=add_bos)
    )
    ids = tokenizer.encode_prompt("<s>a" if written else "a")
    assert texts(tokenizer, ids) == (["<s>", "a"] if add_bos or written else ["a"])


def test_llama_3_vocabularies_want_bos_unless_told_otherwise() -> None:
    keys = byte_level(control=["<s>"], bos_token_id="<s>", pre="llama-bpe")
    assert Tokenizer.from_metadata(keys).add_bos
    keys["tokenizer.ggml.add_bos_token"] = False
    assert not Tokenizer.from_metadata(keys).add_bos


def k21(**more: Any) -> Tokenizer:
    pieces = {piece: -float(i) for i, piece in enumerate(["▁text", "text", "te", "xt"])}
    pieces |= {piece: -10.0 for piece in "▁tex" + "a"}
    return Tokenizer.from_metadata(spm(pieces, {"<pad>": CONTROL}, **more))


def test_k21_no_space_is_put_in_front_where_the_file_says_so() -> None:
    tokenizer = k21(add_space_prefix=False)
    assert encoded(tokenizer, "text") == ["text"]
    assert encoded(tokenizer, "<pad>text", parse_special=True) == ["<pad>", "text"]


@pytest.mark.parametrize("flag", [True, None])
def test_k21_a_space_is_put_in_front_else(flag: bool | None) -> None:
    tokenizer = k21(add_space_prefix=flag)
    assert encoded(tokenizer, "text") == ["▁text"]
    assert encoded(tokenizer, "<pad>text", parse_special=True) == ["<pad>", "▁text"]
    ids = tokenizer.encode("text", add_special=True, parse_special=False)
    assert texts(tokenizer, ids) == ["<s>", "▁text"]


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("text", ["", " ", "  a", "a", "a ", "\n", "🙂", "text text", " text"])
def test_k21_turning_back_gives_the_input(flag: bool, text: str) -> None:
    tokenizer = k21(add_space_prefix=flag)
    ids = tokenizer.encode(text, add_special=True, parse_special=False)
    assert tokenizer.decode(ids) == text


def test_spm_text_comes_back(rng: np.random.Generator) -> None:
    tokenizer = k21()
    for length in (0, 1, 2, 40):
        text = random_text(rng, length)
        assert (
            tokenizer.decode(tokenizer.encode(text, add_special=True, parse_special=False)) == text
        )


def joined_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """The rule, plainly: join the best pair, leftmost on a tie, until none is a piece."""
    symbols = list(text)
    while True:
        pairs = [(i, left + right) for i, (left, right) in enumerate(pairwise(symbols))]
        best = max(
            (pair for pair in pairs if pair[1] in scores),
            key=lambda pair: (scores[pair[1]], -pair[0]),
            default=None,
        )
        if best is None:
            return symbols
        symbols[best[0] : best[0] + 2] = [best[1]]


def test_spm_joins_the_best_pair_and_the_leftmost_on_a_tie(rng: np.random.Generator) -> None:
    """Few letters and few different scores, so that ties, overlaps and runs of spaces are common."""
    letters = "ab▁"
    for _ in range(30):
        made = {"".join(rng.choice(list(letters), size=rng.integers(2, 6))) for _ in range(25)}
        scores = {piece: float(-rng.integers(0, 4)) for piece in [*letters, *sorted(made)]}
        tokenizer = Tokenizer.from_metadata(spm(scores, {}, add_space_prefix=False))
        for length in (1, 2, 5, 30, 200):
            text = "".join(rng.choice(list(letters), size=length))
            assert encoded(tokenizer, text.replace("▁", " ")) == joined_by_score(text, scores)


def test_spm_spells_what_it_has_no_piece_for() -> None:
    assert encoded(k21(add_space_prefix=False), "é") == ["<0xC3>", "<0xA9>"]
    keys = metadata("llama", ["<unk>", "▁", "a"], [2, 1, 1], scores=[0.0, 0.0, 0.0])
    assert encoded(Tokenizer.from_metadata(keys), "aé") == ["▁", "a", "<unk>", "<unk>"]


def test_bytes_of_tokens() -> None:
    keys = byte_level(["Ã ©"], ["<|x|>"], ["ø y"])
    keys["tokenizer.ggml.tokens"] += ["spare", "\udcff"]
    keys["tokenizer.ggml.token_type"] += [UNUSED, NORMAL]
    tokenizer = Tokenizer.from_metadata(keys)
    by_text = {
        tokenizer.token_text(i): tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)
    }
    assert by_text["Ã©"] == "é".encode()
    assert by_text["Ġ"] == b" "
    assert by_text["ø y"] == "ø y".encode()
    assert by_text["<|x|>"] == by_text["spare"] == b""
    assert by_text["\udcff"] == b"\xff"
    assert tokenizer.token_bytes(-1) == tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert k21().token_bytes(3 + 0xC3) == b"\xc3"
    odd = metadata("llama", ["<0xZZ>"], [BYTE])
    assert Tokenizer.from_metadata(odd).token_bytes(0) == b""


def test_half_a_surrogate_pair_counts_as_the_replacement_character() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    ids = tokenizer.encode("a\ud800b", add_special=False, parse_special=False)
    assert tokenizer.decode(ids) == "a\ufffdb"


def test_stop_ids_come_from_keys_and_from_names() -> None:
    control = ["<e>", "<t>", "<|im_end|>", "<|eot_id|>", "<other>", "<m>"]
    tokenizer = Tokenizer.from_metadata(
        byte_level(
            [],
            control,
            ["<end_of_turn>"],
            eos_token_id="<e>",
            eot_token_id="<t>",
            eom_token_id="<m>",
        )
    )
    assert {tokenizer.token_text(i) for i in tokenizer.stop_ids} == {
        *(set(control) - {"<other>"}),
        "<end_of_turn>",
    }
    last = tokenizer.vocab_size - 1
    assert tokenizer.token_text(last) == "<end_of_turn>"
    assert tokenizer.is_control(last), "a turn's end is control, whatever type the file gives it"


def test_end_of_message_is_no_end_where_a_reply_goes_on_behind_it() -> None:
    control = ["<|end|>", "<|return|>", "<|call|>"]
    tokenizer = Tokenizer.from_metadata(byte_level(control=control))
    assert {tokenizer.token_text(i) for i in tokenizer.stop_ids} == {"<|return|>", "<|call|>"}


def test_html_that_looks_like_an_end_is_shown() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(user_defined=["</s>"]))
    last = tokenizer.vocab_size - 1
    assert tokenizer.decode([last]) == "</s>"
    assert last not in tokenizer.stop_ids
    assert encoded(tokenizer, "</s>") == list("</s>")  # llama.cpp reads it as a control token
    assert encoded(tokenizer, "</s>", parse_special=True) == ["</s>"]


def test_ids_outside_the_vocabulary_count_as_not_given() -> None:
    tokenizer = Tokenizer.from_metadata(
        byte_level(bos_token_id=10**6, eos_token_id=-1, add_bos_token=True)
    )
    assert tokenizer.bos_id is None and tokenizer.eos_id is None and not tokenizer.add_bos
    assert encoded(tokenizer, "a") == ["a"]


@pytest.mark.parametrize("name", ["frobnicate", "\x1b[31m", "long" * 10_000])
def test_an_unknown_pre_tokenizer_is_refused_in_few_words(name: str) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.pre is '") as caught:
        Tokenizer.from_metadata(byte_level(pre=name))
    assert len(str(caught.value)) < 250 and str(caught.value).isprintable()


@pytest.mark.parametrize("model", ["plamo2", "t5", "rwkv"])
def test_other_kinds_of_tokenizer_are_refused_by_name(model: str) -> None:
    with pytest.raises(NotSupportedError, match=f"'{model}'"):
        Tokenizer.from_metadata(metadata(model, ["a"], [1]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", None),
        ("model", 7),
        ("tokens", None),
        ("tokens", "abc"),
        ("tokens", [1, 2]),
        ("token_type", [1, 1]),
        ("token_type", "abc"),
        ("token_type", np.full(300, np.nan)),
        ("merges", 5),
        ("scores", [float("nan")] * 300),
        ("add_bos_token", "false"),
        ("add_bos_token", np.array([True, False])),
        ("add_eos_token", np.array([])),
        ("pre", 3),
    ],
)
def test_inconsistent_metadata_is_refused_naming_the_key(key: str, value: Any) -> None:
    keys = byte_level(["a b"])
    keys[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ModelFileError, match=rf"tokenizer\.ggml\.{key}"):
        Tokenizer.from_metadata(keys)
    assert Tokenizer.from_metadata(byte_level(["a b"])).vocab_size == 257


def test_a_grammar_sees_each_tokens_bytes_and_the_ends_k08() -> None:
    """Joined, the pieces of a text's ids are the text; control tokens are named, ends are listed."""
    control = ["<|im_end|>", "<|x|>"]
    for keys in (
        byte_level(["Ã ©", "Ġ a"], control),
        spm({"▁": -3.0, "▁a": -1.0, "é": -2.0}, {"<|im_end|>": CONTROL}),
    ):
        tokenizer = Tokenizer.from_metadata(keys)
        table = tokenizer.token_table()
        text = "a é 🙂\n"
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        joined = b"".join(table.pieces[i] for i in ids)
        assert joined.removeprefix(b" ") == text.encode()
        assert len(table.pieces) == tokenizer.vocab_size
        assert set(table.control_ids) == {
            i for i in range(tokenizer.vocab_size) if tokenizer.is_control(i)
        }
        assert set(table.end_ids) == tokenizer.stop_ids and tokenizer.stop_ids
        assert all(table.pieces[i] == tokenizer.token_text(i).encode() for i in table.control_ids)
