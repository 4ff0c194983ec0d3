"""Modelfiles: every instruction, texts over lines, what is refused with its line, and back to text."""

from __future__ import annotations

import pytest

from emberd.errors import ConfigError
from emberd.models.modelfile import format_modelfile, parse_modelfile
from emberd.models.recipe import Recipe

MARIO = '''
# a comment
FROM ./model.gguf
PARAMETER temperature 1
parameter num_ctx 4096
PARAMETER stop "<|end|>"
PARAMETER stop AI:
TEMPLATE """{% for m in messages %}
{{ m.content }}{% endfor %}"""
SYSTEM """
You are Mario,
from "super mario" bros.
"""
MESSAGE user Is it "so"?
MESSAGE assistant """yes
indeed"""
LICENSE "free"
'''


def test_every_instruction_is_read() -> None:
    read = parse_modelfile(MARIO)
    assert read.base == "./model.gguf"
    assert dict(read.recipe.parameters) == {
        "temperature": 1.0,
        "num_ctx": 4096,
        "stop": ("<|end|>", "AI:"),
    }
    assert read.recipe.template == "{% for m in messages %}\n{{ m.content }}{% endfor %}"
    assert read.recipe.system == '\nYou are Mario,\nfrom "super mario" bros.\n'
    assert read.recipe.messages == (("user", 'Is it "so"?'), ("assistant", "yes\nindeed"))
    assert read.recipe.license == ("free",)


def test_a_text_goes_to_the_end_of_its_line() -> None:
    read = parse_modelfile("from a/b:c\r\nsystem You are a pirate. # not a comment\r\n")
    assert (read.base, read.recipe.system) == ("a/b:c", "You are a pirate. # not a comment")


def test_a_tab_parts_words_as_a_blank_does() -> None:
    read = parse_modelfile(
        'FROM\tx\nPARAMETER\tnum_gpu\t99\nPARAMETER num_ctx\t\t4096\nMESSAGE user\t"hi"\n'
    )
    assert read.ignored == ("num_gpu",)
    assert dict(read.recipe.parameters) == {"num_ctx": 4096}
    assert read.recipe.messages == (("user", "hi"),)


@pytest.mark.parametrize("text", [MARIO, "FROM x", "FROM x\nPARAMETER top_p 0.333333"])
def test_what_is_written_reads_as_the_same(text: str) -> None:
    read = parse_modelfile(text)
    assert parse_modelfile(format_modelfile(read.base, read.recipe)) == read


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("SYSTEM hello", "FROM is missing"),
        ("FROM x\n\nADAPTER ./lora.gguf", "line 3: ADAPTER is not supported"),
        ("FROM x\nNONSENSE y", "line 2: 'NONSENSE' is no instruction"),
        ("FROM x\nFROM", "line 2: 'FROM' is no instruction with a value"),
        ("FROM x\nPARAMETER temprature 1", "line 2: PARAMETER 'temprature' is not one of"),
        (
            "FROM x\nPARAMETER temperature hot",
            "line 2: PARAMETER temperature: 'hot' is not a number",
        ),
        ("FROM x\nPARAMETER top_k 1.5", "line 2: PARAMETER top_k"),
        ("FROM x\nPARAMETER top_p 7", "line 2: PARAMETER top_p"),
        ('FROM x\nSYSTEM """open', 'line 2: the text after """ has no """'),
        ("FROM x\nMESSAGE robot hi", "line 2: a MESSAGE is"),
        ("FROM x\nTEMPLATE {{ .Prompt }}", "a Go template is not supported"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_modelfile(text)
    assert fault in str(caught.value)


def test_a_byte_order_mark_and_parameters_of_ollamas_engine_do_nothing() -> None:
    text = "FROM x\nPARAMETER num_gpu 99\nPARAMETER use_mmap false\nPARAMETER num_gpu 1\nPARAMETER top_k 3"
    read = parse_modelfile("\ufeff" + text)
    assert (read.base, read.ignored) == ("x", ("num_gpu", "use_mmap"))
    assert read.recipe.parameters == (("top_k", 3),)


def test_values_from_a_disk_are_checked() -> None:
    recipe = Recipe.from_json(
        {
            "system": 3,
            "parameters": {"temperature": "hot", "top_k": 5.0, "seed": True, "min_p": float("nan")},
            "messages": [{"role": "tool", "content": "x"}, ["user", "y"], 7],
            "license": "free",
        }
    )
    assert recipe == Recipe(
        parameters=(("top_k", 5),), messages=(("user", "y"),), license=("free",)
    )
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert Recipe.from_json(None) == Recipe()
