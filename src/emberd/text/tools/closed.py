"""Calls that can only be read once they are complete: XML-like ones, and Gemma's notation.

Each is a function from the text between two tags to names and arguments. Knows no streams beyond that.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from .body import Json, NotACallError, Piece, Tools, Tree, whole_call

Calls = list[tuple[str, Json]]
Parse = Callable[[str, Tools], Calls]

_NAME = r"[\w.\-]+"
_PYTHON_WORDS = {"None": None, "True": True, "False": False}
_BLANKS = re.compile(r"\s*")
_CDATA = re.compile(r"\s*<!\[CDATA\[(.*?)\]\]>\s*", re.DOTALL)
XML_VALUE, KEY_VALUE = ("<parameter=", "</parameter>"), ("<arg_value>", "</arg_value>")
_LINE = r"^(?:(?<!\s\n)\s*|[^\S\n]*)"
"""A line's beginning and blanks, also of the lines behind it; not from each of many blank lines on."""

_XML_FUNCTION = re.compile(
    rf"(?:(</function>\s*(?:</tool_call>\s*<tool_call>\s*)?)|{_LINE})<function=", re.MULTILINE
)
_XML_OPENING = re.compile(rf"(?:{_LINE}|(?<=</parameter>)\s*)<parameter=([^>]+)>", re.MULTILINE)
_XML_CLOSE = re.compile(rf"</parameter>(?=\s*(?:<|\Z))|(?={_LINE}<parameter=)", re.MULTILINE)
_NOTHING = re.compile(r"(?!)")
_XML_END = re.compile("</function>")  # of a value that has no closing tag
_PARAMETER = re.compile(r'<([^<>\s]*param(?:eter)?) name="([^"]+)"([^>]*)>')
_TYPED = re.compile(r'<\|open\|>argument key="([^"]*)"(?: type="(\w*)")?[^<>]*<\|sep\|>')
_TYPED_CLOSE = re.compile(r"<\|close\|>argument<\|sep\|>")
_TYPED_JSON = re.compile(
    r"\s*<\|open\|>json[^<>]*<\|sep\|>(.*)<\|close\|>json<\|sep\|>\s*", re.DOTALL
)
_SUFFIX = r"(?::\w+)?>"  # of Tencent's tags
_KEY_VALUE = re.compile(
    rf"<arg_key{_SUFFIX}((?:(?!</?arg_key[:>]).)*)</arg_key{_SUFFIX}\s*<arg_value{_SUFFIX}",
    re.DOTALL,
)
_KEY_VALUE_CLOSE = re.compile(f"</arg_value{_SUFFIX}")
_KEY_VALUE_HEAD = re.compile("<arg_key[:>]|<tool_sep[:>]")
ELEMENTS = "]<]minimax[>["
"""In front of each tag of MiniMax M3's calls."""

_ELEMENT = re.compile(rf"{re.escape(ELEMENTS)}<(/?)([^<>]+)>")


class Closed:
    """Waits for `close`, then parses. Text that does not begin like `start` (a pattern for the first
    characters, blanks before them aside) is no call, and this is said at once. `value` are the tags of a value: a
    `close` between them is text of it."""

    def __init__(
        self, tools: Tools, parse: Parse, close: str, start: str, value: tuple[str, str]
    ) -> None:
        self._tools, self._parse, self._close, self._start = tools, parse, close, start
        self._value = value
        self._held = ""
        self._seen = 0  # of `held`, in which there is no `close`

    def push(self, text: str) -> tuple[list[Piece], str | None]:
        self._held += text
        begun = self._held.lstrip()[: len(self._start)]
        if not self._start.startswith(begun):
            raise NotACallError
        while (place := self._held.find(self._close, self._seen)) >= 0:
            behind = place + len(self._close)
            if not _within(self._held, place, self._value):
                return self._pieces(self._held[:place]), self._held[behind:]
            self._seen = behind
        self._seen = max(self._seen, len(self._held) - len(self._close) + 1)
        return [], None

    def finish(self) -> list[Piece]:
        return self._pieces(self._held)

    def _pieces(self, text: str) -> list[Piece]:
        calls = self._parse(text, self._tools)
        if not calls:
            raise NotACallError
        return [piece for name, arguments in calls for piece in whole_call(name, arguments)]


def _within(text: str, place: int, value: tuple[str, str]) -> bool:
    """Whether a value has begun before `place` that does not end before it."""
    opening, closing = value
    return bool(opening) and text.rfind(opening, 0, place) > text.rfind(closing, 0, place)


def xml_calls(text: str, tools: Tools) -> Calls:
    """`<function=f>\\n<parameter=a>\\n1\\n</parameter>\\n</function>`, also without its first tag's beginning."""
    calls = []
    found = [
        match
        for match in _XML_FUNCTION.finditer(text)
        if match[1] or not _within(text, match.start(), XML_VALUE)
    ]
    ends = [*(match.start() for match in found), len(text)][1:]
    for match, end in zip(found, ends, strict=True):
        block = text[match.end() : end]
        head, _, rest = block.partition(">")
        if not re.fullmatch(_NAME, head.strip()):
            raise NotACallError
        values = _values(rest, _XML_OPENING, lambda tag: _XML_CLOSE, _XML_END)
        arguments = {tag[1].strip(): _without_frame(value) for tag, value in values}
        calls.append((head.strip(), tools.converted(head.strip(), arguments)))
    return calls


def xml_call(text: str, tools: Tools) -> Calls:
    """As xml_calls, from behind the first `<function=`."""
    return xml_calls(f"<function={text}", tools)


def invoke_call(text: str, tools: Tools) -> Calls:
    """`f"><parameter name="a">1</parameter>`, from behind `<invoke name="`; tags may have a prefix, be called
    `param`, and their text be one of `<![CDATA[…]]>`."""
    match = re.match(rf'({_NAME})"\s*>', text)
    if match is None:
        raise NotACallError
    found = list(_values(text, _PARAMETER, lambda tag: re.compile(f"</{re.escape(tag[1])}>")))
    texts = {tag[2] for tag, _ in found if 'string="true"' in tag[3]}
    arguments = {tag[2]: value for tag, value in found}
    return [(match[1], tools.converted(match[1], arguments, texts))]


def keyed_calls(text: str, tools: Tools) -> Calls:
    """`[{"f": {"a": 1}}]`."""
    try:
        calls = [item for entry in json.loads(text) for item in entry.items()]
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise NotACallError from None
    if not all(isinstance(arguments, dict) for _, arguments in calls):
        raise NotACallError
    return calls


def typed_call(text: str, tools: Tools) -> Calls:
    """`f" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>`, from behind
    `<|open|>call tool="`; or all arguments as the JSON of one element `json`."""
    match = re.match(rf'({_NAME})"[^<>]*<\|sep\|>', text)
    if match is None:
        raise NotACallError
    whole = re.fullmatch(_TYPED_JSON, text[match.end() :])
    if whole is not None:
        return [(match[1], json_object(whole[1]))]
    found = [
        (html.unescape(tag[1]), tag[2], value)
        for tag, value in _values(text, _TYPED, lambda tag: _TYPED_CLOSE)
    ]
    texts = {name for name, kind, _ in found if kind == "string"}
    arguments = {name: value for name, _, value in found}
    return [(match[1], tools.converted(match[1], arguments, texts))]


def json_object(text: str) -> Json:
    """Raises NotACallError where the text is no object of JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise NotACallError from None
    if not isinstance(value, dict):
        raise NotACallError
    return value


def key_value_calls(text: str, tools: Tools) -> Calls:
    """`f\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>`; Tencent's `<tool_sep>` may end the name."""
    name = _KEY_VALUE_HEAD.split(text, maxsplit=1)[0].strip()
    if not re.fullmatch(_NAME, name):
        raise NotACallError
    found = _values(text, _KEY_VALUE, lambda tag: _KEY_VALUE_CLOSE)
    return [(name, tools.converted(name, {tag[1].strip(): value for tag, value in found}))]


def element_calls(text: str, tools: Tools) -> Calls:
    """`f"><a>1</a><b><item>2</item></b>`, from behind `<invoke name="`, with ELEMENTS in front of each tag: lists
    and objects are elements in elements. A closing tag ends the innermost one, whatever its name."""
    match = re.match(rf'({_NAME})"\s*>', text)
    if match is None:
        raise NotACallError
    levels: list[tuple[str, list[tuple[str, Tree]], int]] = [("", [], match.end())]
    for tag in _ELEMENT.finditer(text, match.end()):
        if not tag[1]:
            levels.append((tag[2].strip(), [], tag.end()))
            continue
        name, inner, start = levels.pop()
        if not levels:
            raise NotACallError
        levels[-1][1].append((name, inner or text[start : tag.start()]))
    if len(levels) != 1:
        raise NotACallError
    return [(match[1], tools.grown(match[1], levels[0][1]))]


def _values(
    text: str,
    opening: re.Pattern[str],
    close: Callable[[re.Match[str]], re.Pattern[str]],
    last: re.Pattern[str] = _NOTHING,
) -> Iterator[tuple[re.Match[str], str]]:
    """Opening tags, and the text of each up to the next closing one, else to `last` or the end. A tag within a JSON
    value is text of it, as one within CDATA is."""
    place = 0
    while (tag := opening.search(text, place)) is not None:
        start, pattern = tag.end(), close(tag)
        quoted = _CDATA.match(text, start)
        behind = quoted.end() if quoted else _behind_json(text, start)
        end = pattern.match(text, behind) or pattern.search(text, start) or last.search(text, start)
        place = end.end() if end else len(text)
        yield tag, quoted[1] if quoted else text[start : end.start() if end else len(text)]


def _behind_json(text: str, start: int) -> int:
    """Place behind the list, object or text that is written there as JSON, and the blanks behind it; else `start`."""
    begun = _BLANKS.match(text, start).end()  # type: ignore[union-attr]
    if text[begun : begun + 1] not in ("{", "[", '"'):
        return start
    try:
        _, end = json.JSONDecoder().raw_decode(text, begun)
    except (ValueError, RecursionError):
        return start
    return _BLANKS.match(text, end).end()  # type: ignore[union-attr]


def gemma_calls(text: str, tools: Tools) -> Calls:
    """`call:f{a:<escape>text<escape>,n:1}`; newer models write `<|"|>` for the quotes."""
    match = re.fullmatch(rf"\s*call:\s*({_NAME})\s*(\{{.*)", text, re.DOTALL)
    if match is None:
        raise NotACallError
    arguments, rest = _Gemma(match[2]).value()
    if not isinstance(arguments, dict) or rest.strip():
        raise NotACallError
    return [(match[1], arguments)]


class _Gemma:
    """Gemma's notation of values: JSON with bare keys and tags for quotes."""

    _QUOTES = ("<escape>", '<|"|>', '"')

    def __init__(self, text: str) -> None:
        self._rest = text

    def value(self, depth: int = 0) -> tuple[Any, str]:
        """The value that the text begins with, and the text behind it."""
        value = self._value(depth)
        return value, self._rest

    def _value(self, depth: int) -> Any:
        if depth > 64:
            raise NotACallError
        self._rest = self._rest.lstrip()
        for quote in self._QUOTES:
            if self._taken(quote):
                text, mark, self._rest = self._rest.partition(quote)
                if not mark:
                    raise NotACallError
                return text
        if self._taken("{"):
            result: Json = {}
            while not self._taken("}"):
                key = self._key()
                result[key] = self._value(depth + 1)
                self._taken(",")
            return result
        if self._taken("["):
            items = []
            while not self._taken("]"):
                items.append(self._value(depth + 1))
                self._taken(",")
            return items
        word = re.match(r"[^,}\]]+", self._rest)
        if word is None:
            raise NotACallError
        self._rest = self._rest[word.end() :]
        try:
            return json.loads(word[0])
        except ValueError:
            text = word[0].strip()
            return _PYTHON_WORDS.get(text, text)

    def _key(self) -> str:
        match = re.match(
            r'\s*(?:<escape>|<\|"\|>|")?([^:<"]+)(?:<escape>|<\|"\|>|")?\s*:', self._rest
        )
        if match is None:
            raise NotACallError
        self._rest = self._rest[match.end() :]
        return match[1].strip()

    def _taken(self, mark: str) -> bool:
        stripped = self._rest.lstrip()
        if stripped.startswith(mark):
            self._rest = stripped[len(mark) :]
            return True
        return False


def _without_frame(text: str) -> str:
    """Without the one line break on each side that frames a value."""
    return text.removeprefix("\n").removesuffix("\n")
