"""Modelfiles: Ollama's text form of a recipe, read and written.

Instructions are FROM, PARAMETER, TEMPLATE (Jinja), SYSTEM, MESSAGE and LICENSE; `#` begins a comment line. A
text goes to the line's end, or stands between quotes or between three of them, where it may have lines.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .recipe import PARAMETERS, Recipe, is_go_template, known_messages, known_parameters

_FIRST_WORD = re.compile(r"([^ \t]*)[ \t]?(.*)", re.DOTALL)
_INSTRUCTION = re.compile(r"[ \t]*([A-Za-z]+)[ \t]+")
_TRIPLE = '"""'
_NOT_SUPPORTED = ("ADAPTER", "RENDERER", "PARSER", "DRAFT")
_NO_EFFECT = ("REQUIRES",)
_PARAMETERS_WITHOUT_EFFECT = frozenset(
    "f16_kv low_vram main_gpu mirostat mirostat_eta mirostat_tau num_batch num_gpu num_gqa num_keep num_thread numa "
    "penalize_newline rope_frequency_base rope_frequency_scale tfs_z typical_p use_mlock "
    "use_mmap vocab_only".split()
)
"""Ollama's, of its engine: they do nothing here."""


@dataclass(frozen=True, slots=True)
class Modelfile:
    base: str  # a model's name or the path of a file
    recipe: Recipe
    ignored: tuple[str, ...] = ()  # parameters without an effect


def parse_modelfile(text: str) -> Modelfile:
    """Raises ConfigError with the line at fault."""
    base = ""
    texts: dict[str, str] = {}
    parameters: dict[str, Any] = {}
    messages, licenses = [], []
    ignored: dict[str, None] = {}
    for line, instruction, value in _instructions(text.removeprefix("\ufeff")):
        word = instruction.upper()
        if word == "FROM":
            base = value
        elif word == "PARAMETER" and _parted(value)[0] in _PARAMETERS_WITHOUT_EFFECT:
            ignored[_parted(value)[0]] = None
        elif word == "PARAMETER":
            _add_parameter(parameters, value, line)
        elif word in ("TEMPLATE", "SYSTEM"):
            texts[word.lower()] = value
        elif word == "MESSAGE":
            role, content = _parted(value)
            messages.append([role.lower(), _unquoted(content)])
            if not known_messages(messages[-1:]):
                raise _fault(line, "a MESSAGE is 'system', 'user' or 'assistant', and its text")
        elif word == "LICENSE":
            licenses.append(value)
        elif word in _NOT_SUPPORTED:
            raise _fault(line, f"{word} is not supported")
        elif word not in _NO_EFFECT:
            raise _fault(line, f"'{instruction:.32}' is no instruction of a Modelfile")
    if not base:
        raise ConfigError("Modelfile: FROM is missing; it names the model or file to start from")
    if is_go_template(texts.get("template", "")):
        raise ConfigError(f"Modelfile: {GO_TEMPLATE_FAULT}")
    recipe = Recipe.from_json(
        {**texts, "parameters": parameters, "messages": messages, "license": licenses}
    )
    return Modelfile(base, recipe, tuple(ignored))


GO_TEMPLATE_FAULT = (
    "a Go template is not supported; give a Jinja chat template, or none for the file's own"
)


def format_modelfile(base: str, recipe: Recipe) -> str:
    """A text that gives the recipe again when it is read."""
    lines = [f"FROM {base}"]
    lines += [f"PARAMETER {name} {text}" for name, text in parameter_lines(recipe)]
    if recipe.template:
        lines.append(f"TEMPLATE {_TRIPLE}{recipe.template}{_TRIPLE}")
    if recipe.system:
        lines.append(f"SYSTEM {_TRIPLE}{recipe.system}{_TRIPLE}")
    lines += [f"MESSAGE {role} {_TRIPLE}{text}{_TRIPLE}" for role, text in recipe.messages]
    lines += [f"LICENSE {_TRIPLE}{text}{_TRIPLE}" for text in recipe.license]
    return "\n".join(lines) + "\n"


def parameter_lines(recipe: Recipe) -> list[tuple[str, str]]:
    """Names and values as text, texts in quotes; `stop` has a line for each."""
    lines = []
    for name, value in recipe.parameters:
        if isinstance(value, tuple):
            lines += [(name, json.dumps(text, ensure_ascii=False)) for text in value]
        else:
            lines.append((name, f"{value:.6g}" if isinstance(value, float) else str(value)))
    return lines


def _instructions(text: str) -> list[tuple[int, str, str]]:
    """(number of the line, instruction, its value)."""
    found = []
    position = 0
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end].strip()
        number = text.count("\n", 0, position) + 1
        if not line or line.startswith("#"):
            position = end + 1
            continue
        head = _INSTRUCTION.match(text, position, end)
        if head is None:
            raise _fault(number, f"'{line:.32}' is no instruction with a value")
        opening = text.find(_TRIPLE, head.end(), end)
        if opening >= 0:
            closing = text.find(_TRIPLE, opening + len(_TRIPLE))
            if closing < 0:
                raise _fault(number, 'the text after """ has no """ at its end')
            value = text[head.end() : opening] + text[opening + len(_TRIPLE) : closing]
            end = text.find("\n", closing)
            end = len(text) if end < 0 else end
        else:
            value = _unquoted(text[head.end() : end].strip())
        found.append((number, head[1], value))
        position = end + 1
    return found


def _parted(text: str) -> tuple[str, str]:
    """The first word, and what stands behind the blank or tab after it."""
    match = _FIRST_WORD.fullmatch(text)
    assert match is not None
    return match[1], match[2]


def _add_parameter(parameters: dict[str, Any], text: str, line: int) -> None:
    name, value = _parted(text.strip())
    value = value.strip()
    if name not in PARAMETERS:
        known = ", ".join(PARAMETERS)
        raise _fault(line, f"PARAMETER '{name:.32}' is not one of {known}")
    if name == "stop":
        parameters.setdefault("stop", []).append(_unquoted(value))
        return
    try:
        parameters[name] = float(value)
        known_value = known_parameters({name: parameters[name]})
    except ValueError:
        known_value = ()
    if not known_value:
        raise _fault(line, f"PARAMETER {name}: '{value:.32}' is not a number in its range")


def _unquoted(text: str) -> str:
    """The text between quotes, JSON's escapes read; other texts as they are."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            value = json.loads(text)
            return value if isinstance(value, str) else text
        except ValueError:
            return text[1:-1]
    return text


def _fault(line: int, fault: str) -> ConfigError:
    return ConfigError(f"Modelfile, line {line}: {fault}")
