"""Calls written as Python: `[f(a=1), g()]`, more forgiving than Python about names and texts.

Names may be words of Python's and have hyphens, texts may hold line breaks and backslashes that escape nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .body import Body, Json, NotACallError, Piece, Tools, whole_call
from .json_calls import JsonCalls

_NAME = r"[\w.\-]+"
_WORDS = {"true": True, "false": False, "null": None}
_END = r"\\?\Z"
"""A text that nothing closes is one up to the end, so that this is looked for once."""

_LONG = rf"""\"{{3}}(?:\\.|[^\\])*?(?:\"{{3}}|{_END})|'{{3}}(?:\\.|[^\\])*?(?:'{{3}}|{_END})"""
_TEXT = rf"""{_LONG}|"(?:\\.|[^"\\])*(?:"|{_END})|'(?:\\.|[^'\\])*(?:'|{_END})"""
_LENIENT = rf"""(?P<quote>["'])(?P<inner>(?:\\.|[^\\])*?)(?:(?P=quote)(?=\s*(?:[,)\]}}:]|\Z))|(?P<open>{_END}))"""
"""A text with its own quotes in it, as some templates teach: up to a quote that something of Python's follows."""


def _texts_and_names(text: str) -> re.Pattern[str]:
    name = r"(?P<name>[^\W\d][\w.\-$@]*|[$@\d][\w.\-$@]*)"
    return re.compile(rf"(?P<text>{text})|(?<![\w.\-$@]){name}(?=\s*(?:\(|=(?!=)))", re.DOTALL)


_STRICTLY, _LENIENTLY = _texts_and_names(_TEXT), _texts_and_names(_LENIENT)
_ESCAPE = re.compile(
    r"\\(?P<known>[\\'\"abfnrtv]|[0-7]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})|\\(?P<slash>/)|\\|\n|\r",
    re.DOTALL,
)


class PythonList:
    """`[f(a=1), g()]` without a tag: only names of tools make it calls."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._held = ""
        self._named = False  # the first name is that of a tool
        self._brackets = _Brackets()

    def push(self, text: str) -> tuple[list[Piece], str | None]:
        for place, character in enumerate(text, 1):
            if self._brackets.closed_by(character):
                self._held += text[:place]
                return self._pieces(), text[place:]
        self._held += text
        if not self._named:
            begun = re.match(rf"\s*\[?\s*({_NAME})?\s*(\(|$)", self._held)
            if begun is None or (begun[2] and begun[1] not in self._tools.schemas):
                raise NotACallError
            self._named = bool(begun[2])
        return [], None

    def finish(self) -> list[Piece]:
        return self._pieces()

    def _pieces(self) -> list[Piece]:
        calls = python_calls(self._held, self._tools)
        if not calls or any(name not in self._tools.schemas for name, _ in calls):
            raise NotACallError
        return [piece for name, arguments in calls for piece in whole_call(name, arguments)]


class JsonOrPython:
    """Calls without a tag as JSON, or as a list of Python's: Llama's models write both, whatever they are told."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._held = ""
        self._body: Body | None = None

    def push(self, text: str) -> tuple[list[Piece], str | None]:
        if self._body is None:
            self._held += text
            begun = self._held.replace("[", "", 1).lstrip()
            if not begun:
                return [], None
            is_json = begun[0] in "{[" or self._held.lstrip()[0] != "["
            self._body = JsonCalls(self._tools, known=True) if is_json else PythonList(self._tools)
            text = self._held
        return self._body.push(text)

    def finish(self) -> list[Piece]:
        if self._body is None:
            raise NotACallError
        return self._body.finish()


def python_calls(text: str, tools: Tools) -> list[tuple[str, Json]]:
    """`[f(a=1), g()]` or `f(a=1)`, or one a line, with literals as arguments; JSON's words for them count too."""
    try:
        return _calls(text, tools, _STRICTLY)
    except NotACallError:
        return _calls(text, tools, _LENIENTLY)


def _calls(text: str, tools: Tools, pattern: re.Pattern[str]) -> list[tuple[str, Json]]:
    names: list[str] = []  # by what stands for them in what Python reads

    def plain(match: re.Match[str]) -> str:
        if match["name"] is not None:
            names.append(match["name"])
            return f"_{len(names) - 1}"
        if pattern is _STRICTLY:
            return _ESCAPE.sub(_escaped, match["text"])
        if match["open"] is not None:
            raise NotACallError
        quote, inner = match["quote"], _ESCAPE.sub(_escaped, match["inner"])
        return quote + re.sub(rf"\\.|{quote}", lambda one: one[0].rjust(2, "\\"), inner) + quote

    try:
        lines = pattern.sub(plain, text).splitlines()  # texts have none any more
        tree = ast.parse("\n".join(line.strip() for line in lines))
        values = [node.value for node in tree.body if isinstance(node, ast.Expr)]
        if len(values) < len(tree.body):
            raise NotACallError
        listed = [value.elts if isinstance(value, ast.List) else [value] for value in values]
        return [_call(node, names, tools) for nodes in listed for node in nodes]
    except (SyntaxError, ValueError, TypeError, IndexError, RecursionError, MemoryError):
        raise NotACallError from None


def _escaped(match: re.Match[str]) -> str:
    """An escape, or a character that stands for itself, as Python has it."""
    if match["known"] is not None:
        return match[0]
    return {"\n": "\\n", "\r": "\\r", "\\/": "/"}.get(match[0], "\\\\")


def _call(node: ast.expr, names: Sequence[str], tools: Tools) -> tuple[str, Json]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise NotACallError
    name = names[int(node.func.id[1:])]
    properties = tools.schemas.get(name, {}).get("properties")
    known = list(properties) if isinstance(properties, Mapping) else []
    if len(node.args) > len(known):
        raise NotACallError
    arguments = dict(zip(known, map(_literal, node.args), strict=False))
    for keyword in node.keywords:
        value = _literal(keyword.value)
        if keyword.arg is not None:
            arguments[names[int(keyword.arg[1:])]] = value
        elif isinstance(value, dict):
            arguments.update(value)
        else:
            raise NotACallError
    return name, arguments


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(_literal(k)): _literal(v) for k, v in zip(node.keys, node.values, strict=True) if k
        }
    value = ast.literal_eval(node)
    if value is not None and not isinstance(value, str | int | float | bool):
        raise NotACallError
    return value


class _Brackets:
    """Follows Python text by characters, to where its first bracket is closed; strings left aside."""

    def __init__(self) -> None:
        self._depth, self._quote, self._escaped = 0, "", False

    def closed_by(self, character: str) -> bool:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
        elif character in "'\"":
            self._quote = character
        elif character in "[({":
            self._depth += 1
        elif character in "])}":
            self._depth -= 1
            return self._depth == 0
        return False
