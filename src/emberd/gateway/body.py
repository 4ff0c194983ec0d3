"""Request bodies: JSON whatever the content type says, checked against a schema, faults named by field.

Knows no route and no dialect; every fault is a BadRequestError.
"""

from __future__ import annotations

import json
import json.scanner
import re
import reprlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated, Any, TypeVar, get_args

from fastapi import Request
from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Strict,
    ValidationError,
)

from ..config import keep_alive_seconds
from ..errors import BadRequestError
from .encoding import BodyTooLargeError, decompress

Json = dict[str, Any]
_IGNORED_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_MAX_IGNORED = 32
LARGE = 1 << 18
"""Bytes from which on a body is to be read in a thread; it is scanned so that others run meanwhile."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = Annotated[float, Strict(), AllowInfNan(False)]
Whole = Annotated[int, Strict(), BeforeValidator(_whole, json_schema_input_type=float)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]


class _FirstFault(FailFast):
    __hash__ = object.__hash__  # members of unions must have one


FIRST_FAULT = _FirstFault()
"""Of a list: one fault is enough. Of a million each would be described before the first is told."""

MAX_MESSAGES = 10_000
"""More than any conversation has. Checking each takes its time, and nothing else runs meanwhile."""


class Schema(BaseModel):
    """A body or a part of one. Fields that it does not name are ignored, null means absent."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


S = TypeVar("S", bound=Schema)


def load(raw: bytes, encoding: str, limit: int) -> Json:
    """The bytes of a body as a JSON object. Raises BadRequestError or BodyTooLargeError."""
    plain = decompress(raw, encoding, limit)
    if not plain.strip():
        raise BadRequestError("missing request body")
    decoder = (_DECODER if len(plain) <= LARGE else _PATIENT_DECODER).decode
    try:
        text = plain.decode("utf-8-sig")
        value = decoder(text)
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the request body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise BadRequestError("the request body is nested too deeply") from None
    except ValueError as error:
        fault = str(error).partition("; use sys.")[0]  # a number of thousands of digits
        raise BadRequestError(f"the request body is not valid JSON: {fault}") from None
    if not isinstance(value, dict):
        raise BadRequestError(f"the request body must be a JSON object, not {_kind(value)}")
    return _without_surrogates(value) if "\\u" in text else value


def parse(schema: type[S], body: Json) -> S:
    """`body` as `schema`. Raises BadRequestError naming the first field that is wrong."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        same_field = [one for one in errors if one["loc"][:1] == errors[0]["loc"][:1]]
        first = max(same_field, key=lambda one: _closeness(one, body))  # of a union
        path = _place(first, body)
        if first["type"] == "missing":
            raise BadRequestError(f"'{path}' is required", path) from None
        reason = first["msg"].removeprefix("Value error, ")
        reason = reason[0].lower() + reason[1:]
        given = reprlib.repr(first["input"])  # short, whatever was sent
        raise BadRequestError(f"'{path}': {reason}; got {given}", path) from None


def _closeness(error: Any, body: Json) -> tuple[int, bool]:
    """How far a member of a union got with the value before this error: what is deepest, and no wrong type."""
    return _place(error, body).count("["), not error["type"].endswith("_type")


def ignored_fields(body: Json, schema: type[Schema], **parts: type[Schema]) -> list[str]:
    """Fields that were sent and do nothing, those of objects within as `options.name`.

    `parts` are schemas of fields whose objects the schema leaves free.
    """
    known = {info.alias or name: name for name, info in schema.model_fields.items()}
    names = [name for name, value in body.items() if name not in known and value is not None]
    for name, field in known.items():
        part, value = parts.get(name) or _part(schema, field), body.get(name)
        if part is not None and isinstance(value, dict):
            names += [f"{name}.{inner}" for inner in ignored_fields(value, part)]
    return names


def ignored_header(body: Json, schema: type[Schema], **parts: type[Schema]) -> dict[str, str]:
    """The response header that lists them; empty if there are none."""
    shown = shown_names(ignored_fields(body, schema, **parts))
    return {"x-emberd-ignored": ", ".join(shown)} if shown else {}


def shown_names(names: Iterable[str]) -> list[str]:
    """Those that a header can hold, of many the first."""
    return list(islice(filter(_IGNORED_NAME.fullmatch, names), _MAX_IGNORED))


def refuse_ignored(names: Sequence[str]) -> None:
    """For the strict: raises BadRequestError if there are fields that do nothing."""
    if names:
        shown = ", ".join(f"'{name:.64}'" for name in names[:_MAX_IGNORED])
        raise BadRequestError(
            f"not used by this build: {shown}; leave it out, or serve without EMBERD_STRICT",
            names[0][:64],
        )


def _part(schema: type[Schema], name: str) -> type[Schema] | None:
    """The schema of an object-valued field; None where it is free or has several."""
    annotation = schema.model_fields[name].annotation
    kinds = [annotation, *get_args(annotation)]
    found = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Schema)]
    return found[0] if len(found) == 1 else None


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body as it came. Raises BodyTooLargeError."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise BodyTooLargeError(limit)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise BodyTooLargeError(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _PatientDecoder(json.JSONDecoder):
    """Scans in Python: several times slower, but the event loop gets its turns."""

    def __init__(self) -> None:
        super().__init__(parse_constant=_refuse_constant)
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_PATIENT_DECODER = _PatientDecoder()


def _without_surrogates(value: Any) -> Any:
    """Half of a surrogate pair, as from a client that cut an emoji in two, becomes U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _place(error: Any, body: Any) -> str:
    """`messages[0].content`. Union members that pydantic adds to the location are left out."""
    path, place = "", body
    missing = len(error["loc"]) - 1 if error["type"] == "missing" else None
    for position, part in enumerate(error["loc"]):
        if isinstance(part, int):
            if not isinstance(place, list) or part >= len(place):
                continue
            path, place = f"{path}[{part}]", place[part]
        elif isinstance(place, dict) and (part in place or position == missing):
            path, place = f"{path}.{part}" if path else part, place.get(part)
    return path


def _kind(value: Any) -> str:
    kinds = {list: "an array", str: "a text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def read_keep_alive(value: float | str | None) -> float | None:
    """Seconds that a model stays loaded; None where nothing was said, as by an empty text. Raises BadRequestError."""
    if value is None or value == "":
        return None
    try:
        return keep_alive_seconds(value)
    except ValueError as error:
        raise BadRequestError(f"'keep_alive': {error}", "keep_alive") from None
