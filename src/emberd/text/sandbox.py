"""The jinja2 environment that chat templates are written for, closed off from Python.

As model makers expect it: blocks trimmed, loop controls, `raise_exception`, `strftime_now`, `tojson` without
HTML escapes, `{% generation %}`. Templates come with model files and are not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .bounds import MAX_SOURCE, BoundedEnvironment, bounded
from .spending import joined

MAX_FORMAT = 256
"""Characters of a `strftime_now` format that are read."""


class TemplateRefusedError(TemplateError):
    """A template's own `raise_exception`."""


class _ImmutableEnvironment(BoundedEnvironment, ImmutableSandboxedEnvironment):
    """Bounded, and lists and dicts stay as they are."""


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on. Here it is its content, with its own names."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def compiled(source: str, clock: Callable[[], datetime], *, may_append: bool) -> Template:
    """Raises what jinja2 raises. `may_append`: lists and dicts may be changed; give it copies then."""
    environment = _environment(source, BoundedEnvironment if may_append else _ImmutableEnvironment)
    environment.filters["tojson"] = bounded("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: clock().strftime(form[:MAX_FORMAT])
    return environment.from_string(source)


@lru_cache(maxsize=64)
def variables_of(source: str) -> frozenset[str]:
    """Names that a template reads from outside; none where it is too long or does not parse."""
    if len(source) > MAX_SOURCE:
        return frozenset()
    try:
        tree = _environment(source, _ImmutableEnvironment).parse(source)
        return frozenset(meta.find_undeclared_variables(tree))
    except Exception:  # as in ChatTemplate: every use of such a template is refused there
        return frozenset()


def _environment(source: str, kind: type[BoundedEnvironment]) -> BoundedEnvironment:
    if "{" * 9 in source:
        raise TemplateError("nine braces in a row")  # jinja2's lexer takes for ever over long runs
    return kind(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusedError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return encoder.encode(value) if indent is None else joined(encoder.iterencode(value))
