"""The scripted model for pages: writes a paragraph, or without end where a long text is asked for.

A page is watched while an answer grows, so how much comes must be known, and it must come on a busy machine; nor
may it be there before a person could have clicked: a wide feed-forward layer takes its time at each token.
"""

from __future__ import annotations

from pathlib import Path

from tiny_gguf import script_model

LONG = ("five hundred", "two thousand", "fifty times")  # what a question for a long text says
_OVERFLOW = 100_000  # characters; so long a message becomes the prompt as it is
_TEMPLATE = (
    "{%- set last = messages[-1].content | string -%}"
    f"{{%- if last | length > {_OVERFLOW} -%}}{{{{ last }}}}"
    "{%- elif " + " or ".join(f"'{words}' in last" for words in LONG) + " -%}L"
    "{%- elif last | length > 1000 -%}T"  # a request for a title, for tags, or with passages
    "{%- else -%}M{%- endif -%}"
)


def write(path: Path, ffn: int = 16_384) -> Path:
    scripts: dict[str, list[str | bytes | int]] = {
        "M": [*(f" word{n}" for n in range(160)), " end."],
        "T": ["Some words", " of a model"],
        "L": [*(f" long{n}" for n in range(40)), " and on,"],
    }
    metadata = {"tokenizer.chat_template": _TEMPLATE}
    return script_model(
        path, scripts, endless="L", context_length=32768, ffn=ffn, metadata=metadata
    )
