"""How byte-level BPE models cut text into words before merging: `tokenizer.ggml.pre` to expressions.

The expressions are those that llama.cpp applies, one after the other, each to the pieces that the former
left; what no expression matches stays a piece too. Knows nothing of vocabularies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


def _ranges(text: str) -> str:
    """Code points and ranges of them in hexadecimal, as the inside of a character class."""
    return re.sub("[0-9A-F]+", lambda match: rf"\x{{{match[0]}}}", text).replace(" ", "")


@dataclass(frozen=True, slots=True)
class Pretokenizer:
    """`ignore_merges`: a word that is a token as it stands is taken whole, whatever the merges say. `lines`: words are
    whole lines, and tokens are written as SPM's: see lines.py; `newlines` are what ignore_merges is there, for words
    of nothing but line breaks."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False  # unless the metadata says otherwise
    always_bos: bool = False  # whatever the metadata says
    lines: bool = False
    newlines: bool = False


_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_NEWLINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED_WORD = (
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+%s"
    r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*%s"
)
# llama.cpp sees no case where a model's own expression tells it by Unicode.
_UNCASED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+%s"
# Letters with case of the scripts that have it, as the model makers list them.
_CASED_LETTERS = _ranges(
    "0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF "
    "0370-0373 0376 0377 037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 "
    "048A-052F 0531-0556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B "
    "1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D "
    "1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC "
    "1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 "
    "2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 "
    "FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 "
    "118A0-118DF 1E900-1E943"
)


# U+0800-9FA5 and Hangul without the spaces among them, which llama.cpp does not see as such there.
_CJK = _ranges("0800-167F 1681-1FFF 200B-2027 202A-202E 2030-205E 2060-2FFF 3001-9FA5 AC00-D7FF")
_HAN_AND_KANA = _ranges("4E00-9FA5 3040-309F 30A0-30FF")
_HANGUL = _ranges("AC00-D7A3 3131-318E")
_EAST_ASIAN_PUNCTUATION = _ranges(
    "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F"
)
_WIDE_PUNCTUATION = _ranges("FF01-FF0F FF1A-FF5E 2018-201F 3001-3002")


_HAN = _ranges(
    "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2EBEF F900-FAFF 2F800-2FA1F"  # as Kimi's models have it
)
_ASIAN = _ranges(
    "4E00-FAFF 3400-4DBF 3040-30FF FF65-FF9F 2F00-2FDF 0E40-0EFF 1780-17FF 1000-109F 1100-11FF"
)
"""Scripts that AFMoE's models cut off, and what llama.cpp takes with them from U+8C48 to U+FAFF."""


def _words(
    number: str,
    symbols_end: str = r"[\r\n]*",
    *,
    contraction: str = f"{_CONTRACTION}|",
    letters: str = r"\p{L}",
    word: str = "",
    spaces: str = _NEWLINES_AND_SPACES,
) -> str:
    """The family of Llama 3 and Qwen 2, which differ in how many digits make a number, and in little else."""
    return (
        rf"{contraction}[^\r\n\p{{L}}\p{{N}}]?{word or f'[{letters}]+'}|{number}"
        rf"| ?[^\s{letters}\p{{N}}]+{symbols_end}|{spaces}"
    )


def _punctuated(symbols_end: str = r"[\r\n]*", spaces: str = _NEWLINES_AND_SPACES) -> str:
    """The family of DeepSeek 3, where a sign may begin a word of Latin letters."""
    return (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+{symbols_end}|{spaces}"
    )


def _cased_words(contraction: str, number: str, word: str = _CASED_WORD) -> str:
    """The family of GPT-4o and Tekken, which cut where lower case turns to upper case."""
    words = word.replace("%s", contraction)
    return rf"{words}|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_NEWLINES_AND_SPACES}"


_LLAMA3 = Pretokenizer((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_LLAMA3_MERGED = Pretokenizer((_words(r"\p{N}{1,3}"),))
_GLM4 = Pretokenizer(_LLAMA3_MERGED.patterns, ignore_merges=True)
_QWEN2 = Pretokenizer((_words(r"\p{N}"),))
_SINGLE_DIGITS = Pretokenizer((r"\p{N}", _GPT2))
_GPT2_PRE = Pretokenizer((_GPT2,))
_GPT4O = Pretokenizer((_cased_words(f"{_CONTRACTION}?", r"\p{N}{1,3}"),))
_CLAUSES = r" ?[^(\s|.,!?…。，、।۔،)]+"  # the brackets and the bar are three more of the signs
_SPACES_BY_HALVES = "|".join(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1))
_DEEPSEEK3 = Pretokenizer((r"\p{N}{1,3}", f"[{_HAN_AND_KANA}]+", _punctuated()))

_HEAD = "(?<![0-9])[0-9]{1,2}(?=([0-9]{3})*(?![0-9]))"
_THREES = rf"(?:{_HEAD}|[^0-9]+)+|[0-9]{{3}}(?:{_HEAD}|[^0-9]+)*"
"""Cuts where SuperBPE's `(?=([0-9]{3})+(?![0-9]))` does, which looks at a number's rest from each of its digits."""

_THREES_BEHIND_TEXT = (
    r"[^\p{N}]*+(?<!\p{N})\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))|\p{N}{3}|[^\p{N}]++"
)
"""Numbers in threes from their end, with the text before a number in its first part, as llama.cpp has them."""

PRETOKENIZERS: dict[str, Pretokenizer] = {
    "default": Pretokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon": Pretokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": Pretokenizer(
        (
            "[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            rf"\s?[!-/:-~{_WIDE_PUNCTUATION}]+",
            r"(?<!\s)\s+$",
            f"[{_CJK}]+",
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Pretokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{_CJK}]+", r"\p{N}")),
    "tekken": Pretokenizer((_cased_words("", r"\p{N}"),), ignore_merges=True, add_bos=True),
    "chameleon": Pretokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "viking": Pretokenizer((_CLAUSES, r"\p{N}")),
    "superbpe": Pretokenizer((r"\p{N}+", _THREES)),
    "seed-coder": Pretokenizer((_words(r"\p{N}", ""),)),
    "qwen35": Pretokenizer((_words(r"\p{N}", letters=r"\p{L}\p{M}"),)),
    "kimi-k2": Pretokenizer(
        (
            _words(
                r"\p{N}{1,3}",
                contraction=f"[{_HAN}]+|",
                word=rf"[\p{{L}}&&[^{_HAN}]]+{_CONTRACTION}?",
            ),
        )
    ),
    "afmoe": Pretokenizer((_THREES_BEHIND_TEXT, f"[{_ASIAN}]+", _punctuated())),
    "spark2_5": Pretokenizer(
        (
            r"\p{N}{1,3}",
            f"[{_HAN_AND_KANA}]+",
            _punctuated("", r"[\r\n]|\s+(?!\S)|\s+"),
            r"\p{N}",
        )
    ),
    **dict.fromkeys(
        "gemma4 granite-embed-multi-311m".split(),
        Pretokenizer((), add_bos=True, always_bos=True, lines=True, newlines=True),
    ),
    "sarvam-moe": Pretokenizer((), lines=True),
    "ufakzeka": Pretokenizer((_words(r"\p{N}", contraction=""),)),
    "laguna": Pretokenizer((r"[^\n]+|[\n]+", _words(r"\p{N}"))),
    "minicpm5": Pretokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True),
    "jais-2": Pretokenizer(
        (_words(r"\p{N}{1,3}", spaces=rf"\s*[\r\n]+|{_SPACES_BY_HALVES}|\s{{1,2}}(?!\S)|\s"),)
    ),
    "exaone-moe": Pretokenizer(
        (
            _words(
                r"\p{N}",
                r"[\r\n/]?",
                word=r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                spaces=r"\s*[\r\n]|\s+(?!\S)|\s+",
            ),
        )
    ),
    "youtu": Pretokenizer(
        (
            f"[{_HANGUL}]+|[{_EAST_ASIAN_PUNCTUATION}]+|[\u3105-\u312f]+|[{_HAN_AND_KANA}]+",
            _cased_words(f"{_CONTRACTION}?", r"\p{N}", _UNCASED_WORD),
        ),
        ignore_merges=True,
    ),
    **dict.fromkeys(
        "tiny_aya cohere2moe".split(),
        Pretokenizer(
            (
                _THREES_BEHIND_TEXT,
                _cased_words(f"{_CONTRACTION}?", r"\p{N}{1,3}", _UNCASED_WORD),
            )
        ),
    ),
    **dict.fromkeys("poro-chat bloom gpt3-finnish".split(), Pretokenizer((_CLAUSES,))),
    **dict.fromkeys(
        "bailingmoe bailingmoe2 llada-moe".split(),
        Pretokenizer((_words(r"\p{N}", spaces=r"\s*[\r\n]|\s+(?!\S)|\s+"),)),
    ),
    **dict.fromkeys(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano".split(),
        _LLAMA3,
    ),
    **dict.fromkeys("dbrx smaug-bpe chatglm-bpe".split(), _LLAMA3_MERGED),
    **dict.fromkeys("glm4 glm5".split(), _GLM4),
    **dict.fromkeys(
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan grok-2 solar-open".split(),
        _QWEN2,
    ),
    **dict.fromkeys(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2".split(),
        _SINGLE_DIGITS,
    ),
    **dict.fromkeys(
        "gpt-2 phi-2 gigachat mellum mpt olmo jais trillion exaone4 a.x-4.0 granite-docling".split(),
        _GPT2_PRE,
    ),
    **dict.fromkeys("gpt-4o llama4 kanana2 minimax-m2 talkie".split(), _GPT4O),
    **dict.fromkeys("deepseek-v3 hunyuan-dense joyai-llm hy_v4".split(), _DEEPSEEK3),
}
