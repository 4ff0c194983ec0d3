"""Calls written as JSON: `{"name": …, "arguments": {…}}`, one or a list, and `name{…}` in its variants.

Arguments are given on as they come, before the JSON is complete. Knows no tags.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .body import Begin, NotACallError, Piece, Tools, whole_call

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_KNOWN = {*_NAMES, *_ARGUMENTS, "id", "type", "tool_call_id", "call_id", "index"}
_LONGEST_HEAD = 256


class JsonText:
    """Follows JSON text by characters: where it is nested, and where a string is."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False

    def push(self, character: str) -> str:
        """The character as JSON has it: line breaks and the like that a model left bare in a string are
        escaped."""
        if self.in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self.in_string = False
            elif character < " ":
                return json.dumps(character)[1:-1]
        elif character == '"':
            self.in_string = True
        elif character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1
        return character


class _CallObject:
    """One object, by characters. `known`: only names of tools and the usual keys make it a call; `name_first`:
    only where the first key is `name`, and its value a text."""

    def __init__(self, tools: Tools, known: bool, name_first: bool) -> None:
        self._tools, self._known, self._name_first = tools, known, name_first
        self._text = JsonText()
        self._at = "key"  # key, colon, value, comma
        self._token = ""  # of the outermost level: the key or value that is being read
        self._key = ""
        self._name: str | None = None
        self._begun = False  # the name was given on, which waits for arguments
        self._early = ""  # arguments that came before the name
        self._streaming = False
        self._has_arguments = False

    def push(self, character: str) -> tuple[list[Piece], bool]:
        """Pieces, and whether the object is complete."""
        written = self._text.push(character)
        if self._text.depth == 0:
            pieces = self._value_read() if self._at == "value" else []
            return pieces + self._ended(), True
        if self._at == "value":
            return self._in_value(character, written), False
        outermost = self._text.depth == 1
        if self._at == "key" and outermost and (self._text.in_string or character == '"'):
            self._token += written
            if not self._text.in_string:
                self._key, self._token, self._at = self._string(self._token), "", "colon"
                if self._known and self._key not in _KNOWN:
                    raise NotACallError
                if self._name_first and self._name is None and self._key != "name":
                    raise NotACallError
        elif self._at == "colon" and character == ":":
            self._at = "value"
        elif self._at == "comma" and character == ",":
            self._at = "key"
        elif not character.isspace() and not (self._token == "" and character == "{"):
            raise NotACallError
        return [], False

    def _in_value(self, character: str, written: str) -> list[Piece]:
        outermost = self._text.depth == 1 and not self._text.in_string
        if outermost and character == ",":
            pieces = self._value_read()
            self._at = "key"
            return pieces
        if not self._token and character.isspace():
            return []
        self._token += written
        if self._token == "{" and self._key in _ARGUMENTS and not self._has_arguments:
            self._streaming = True
        if not self._streaming:
            return []
        pieces = self._arguments(written)
        if outermost:  # its closing brace
            self._streaming, self._token, self._at = False, "", "comma"
            self._has_arguments = True
        return pieces

    def _value_read(self) -> list[Piece]:
        """A value other than an object of arguments is complete."""
        token, self._token = self._token.strip(), ""
        if self._name_first and self._name is None and not token.startswith('"'):
            raise NotACallError
        if self._key in _NAMES and self._name is None and token.startswith('"'):
            return self._named(self._string(token))
        if self._key == "function" and token.startswith("{") and self._name is None:
            function = self._loaded(token)
            pieces = self._named(self._text_of(function.get("name")))
            return pieces + self._whole_arguments(function.get("arguments"))
        if self._key in _ARGUMENTS and not self._has_arguments:
            return self._whole_arguments(self._loaded(token))
        return []

    def _named(self, name: str) -> list[Piece]:
        if not name or (self._known and name not in self._tools.schemas):
            raise NotACallError
        self._name = name
        early, self._early = self._early, ""
        return self._arguments(early) if early else []

    def _whole_arguments(self, value: Any) -> list[Piece]:
        if isinstance(value, str):
            value = self._loaded(value) if value.strip() else {}
        if value is not None and not isinstance(value, dict):
            raise NotACallError
        self._has_arguments = True
        return self._arguments(json.dumps(value or {}, ensure_ascii=False))

    def _arguments(self, text: str) -> list[Piece]:
        if self._name is None:
            self._early += text
            return []
        begin: list[Piece] = [] if self._begun else [Begin(self._name)]
        self._begun = True
        return [*begin, text]

    def _ended(self) -> list[Piece]:
        if self._name is None:
            raise NotACallError
        return [] if self._has_arguments else self._arguments("{}")

    def _string(self, token: str) -> str:
        return self._text_of(self._loaded(token))

    @staticmethod
    def _text_of(value: Any) -> str:
        if not isinstance(value, str):
            raise NotACallError
        return value

    @staticmethod
    def _loaded(token: str) -> Any:
        try:
            return json.loads(token)
        except (ValueError, RecursionError):
            raise NotACallError from None


class JsonCalls:
    """One object or a list of them. `known`: for text without a tag, where an object may be an answer;
    `name_first` as in _CallObject."""

    def __init__(self, tools: Tools, *, known: bool = False, name_first: bool = False) -> None:
        self._tools, self._known, self._name_first = tools, known, name_first
        self._is_list = False
        self._object: _CallObject | None = None
        self._num_read = 0

    def push(self, text: str) -> tuple[list[Piece], str | None]:
        pieces: list[Piece] = []
        for place, character in enumerate(text):
            if self._object is not None:
                try:
                    new, complete = self._object.push(character)
                except NotACallError:
                    raise NotACallError(pieces, text[place + 1 :]) from None
                pieces += new
                if complete:
                    self._object, self._num_read = None, self._num_read + 1
                    if not self._is_list:
                        return pieces, text[place + 1 :]
            elif character == "{":
                self._object = _CallObject(self._tools, self._known, self._name_first)
                self._object.push(character)
            elif character == "[" and not self._is_list:
                self._is_list = True
            elif character == "]" and self._num_read:
                return pieces, text[place + 1 :]
            elif not character.isspace() and not (character == "," and self._num_read):
                raise NotACallError(pieces, text[place + 1 :])
        return pieces, None

    def finish(self) -> list[Piece]:
        if self._num_read and self._object is None:
            return []  # only the closing bracket is missing
        raise NotACallError


class NamedJson:
    """A head with the name, then an object of arguments. `head` must match all that stands before the
    object; its group `name` is the name. `or_list`: what begins with a bracket is a JsonCalls list."""

    def __init__(self, tools: Tools, head: str, *, or_list: bool = False) -> None:
        self._head = re.compile(head)
        self._list = JsonCalls(tools) if or_list else None
        self._in_list = False
        self._held = ""
        self._text: JsonText | None = None

    def push(self, text: str) -> tuple[list[Piece], str | None]:
        if self._list is not None and self._in_list:
            return self._list.push(text)
        pieces: list[Piece] = []
        if self._text is None:
            self._held += text
            if self._list is not None and self._held.lstrip().startswith("["):
                self._in_list = True
                return self._list.push(self._held)
            place = self._held.find("{")
            head = self._held if place < 0 else self._held[:place]
            if len(head) > _LONGEST_HEAD:
                raise NotACallError
            if place < 0:
                return [], None
            pieces.append(Begin(self._name(head)))
            text, self._text = self._held[place:], JsonText()
        fragment = ""
        for place, character in enumerate(text):
            fragment += self._text.push(character)
            if self._text.depth == 0:
                return [*pieces, fragment], text[place + 1 :]
        return ([*pieces, fragment] if fragment else pieces), None

    def finish(self) -> list[Piece]:
        if self._text is not None:
            raise NotACallError
        if self._list is not None and self._in_list:
            return self._list.finish()
        return whole_call(self._name(self._held), {})

    def _name(self, head: str) -> str:
        match = self._head.fullmatch(head)
        if match is None:
            raise NotACallError
        return match["name"]
