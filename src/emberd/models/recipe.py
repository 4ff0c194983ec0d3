"""Recipe: what a model has beside its file, as a Modelfile tells it: system text, parameters, template, messages.

Parameters have Ollama's names here; `hints` turns them into fields of SamplingParams.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = int | float | str | tuple[str, ...]
MAX_STOPS = 64
_MAX_WINDOW = 1 << 30

# Ollama's name: the field of SamplingParams, whether it is whole, the least and the most it may be.
_NUMBERS: dict[str, tuple[str | None, bool, float, float]] = {
    "temperature": ("temperature", False, 0, 100),
    "top_k": ("top_k", True, -1, (1 << 31) - 1),
    "top_p": ("top_p", False, 0, 1),
    "min_p": ("min_p", False, 0, 1),
    "repeat_penalty": ("repetition_penalty", False, 0.01, 10),
    "repeat_last_n": ("penalty_window", True, -1, _MAX_WINDOW),
    "presence_penalty": ("presence_penalty", False, -10, 10),
    "frequency_penalty": ("frequency_penalty", False, -10, 10),
    "seed": ("seed", True, -(1 << 63), (1 << 64) - 1),
    "num_predict": ("max_tokens", True, -2, 1 << 30),
    "num_ctx": (None, True, 1, 1 << 30),  # shown; what is served is the setting's
}
PARAMETERS = (*_NUMBERS, "stop")
_GO_TEMPLATE = re.compile(r"\{\{[^{}]*(?<![\w'\"\])])[.$]")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Empty fields: the file's own."""

    system: str = ""
    template: str = ""  # Jinja
    go_template: str = ""  # as it came from a registry; told, never run
    parameters: tuple[tuple[str, Value], ...] = ()
    messages: tuple[tuple[str, str], ...] = ()  # role and text, in front of every conversation
    license: tuple[str, ...] = ()
    parent: str = ""  # the model that this was made from

    @property
    def hints(self) -> dict[str, float]:
        """Fields of SamplingParams."""
        found = {}
        for name, value in self.parameters:
            field = _NUMBERS[name][0] if name in _NUMBERS else None
            if field is not None and isinstance(value, int | float):
                found[field] = value
        if found.get("max_tokens", 1) < 1:
            del found["max_tokens"]  # no limit
        return found

    @property
    def stops(self) -> tuple[str, ...]:
        stops = dict(self.parameters).get("stop", ())
        return stops if isinstance(stops, tuple) else ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def over(self, base: Recipe) -> Recipe:
        """What is said here, and where this is silent what `base` says. The parent is this one's."""
        return Recipe(
            system=self.system or base.system,
            template=self.template or base.template,
            go_template="" if self.template else base.go_template,
            parameters=tuple((dict(base.parameters) | dict(self.parameters)).items()),
            messages=self.messages or base.messages,
            license=self.license or base.license,
            parent=self.parent,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, without what is empty."""
        values = {key: value for key, value in dataclasses.asdict(self).items() if value}
        if self.parameters:
            values["parameters"] = dict(self.parameters)
        return values

    @classmethod
    def from_json(cls, values: Any) -> Recipe:
        """Whatever was read from a disk or a registry: what is not understood is left out."""
        if not isinstance(values, Mapping):
            return cls()
        texts = {
            name: _whole(value)
            for name in ("system", "template", "go_template", "parent")
            if isinstance(value := values.get(name), str)
        }
        return cls(
            **texts,
            parameters=known_parameters(values.get("parameters")),
            messages=known_messages(values.get("messages")),
            license=tuple(
                _whole(text) for text in _list(values.get("license")) if isinstance(text, str)
            ),
        )


PLAIN = Recipe()
"""Nothing beside the file."""


def is_go_template(text: str) -> bool:
    """Go's templates name fields with a dot in front, `{{ .Prompt }}`, which Jinja never does."""
    return _GO_TEMPLATE.search(text) is not None


def known_parameters(values: Any) -> tuple[tuple[str, Value], ...]:
    """Parameters of a name, type and range that are known; others are left out."""
    found: list[tuple[str, Value]] = []
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if name == "stop":
            stops = tuple(_whole(text) for text in _list(value) if isinstance(text, str) and text)
            if stops:
                found.append((name, stops[:MAX_STOPS]))
        elif name in _NUMBERS and isinstance(value, int | float) and not isinstance(value, bool):
            _, whole, least, most = _NUMBERS[name]
            if least <= value <= most and (not whole or float(value).is_integer()):
                found.append((name, int(value) if whole else float(value)))
    return tuple(found)


def known_messages(values: Any) -> tuple[tuple[str, str], ...]:
    found = []
    for value in _list(values):
        pair = (value.get("role"), value.get("content")) if isinstance(value, Mapping) else value
        if isinstance(pair, tuple | list) and len(pair) == 2:
            role, content = pair
            if role in ("system", "user", "assistant") and isinstance(content, str):
                found.append((role, _whole(content)))
    return tuple(found)


def _list(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [value]


def _whole(text: str) -> str:
    """Half of a surrogate pair, which JSON can spell, becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
