"""The API document: every route with its body, an example and its answers, as /openapi.json and as the page /docs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from .body import Schema
from .examples import EXAMPLES, Example

Json = dict[str, Any]
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_ERRORS: dict[str, Json] = {
    "OpenAI": {"error": {"message": "...", "type": "...", "param": None, "code": None}},
    "Ollama": {"error": "..."},
    "Anthropic": {
        "type": "error",
        "error": {"type": "...", "message": "..."},
        "request_id": "...",
    },
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "pre{background:#8882;padding:.6rem;overflow:auto}code,pre{font-size:.85rem}"
    "summary{cursor:pointer;padding:.3rem 0}b{display:inline-block;min-width:5rem}"
    "td,th{text-align:left;padding:.1rem 1rem .1rem 0;vertical-align:top}"
)


def build(app: FastAPI, bodies: Sequence[type[Schema]]) -> Json:
    """The OpenAPI document; `bodies` are those that routes read themselves."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, definitions = models_json_schema(
        [(schema, "validation") for schema in bodies], ref_template="#/components/schemas/{model}"
    )
    document["components"] = {"schemas": definitions["$defs"], "securitySchemes": _KEYS}
    document["security"] = [{}, *({name: []} for name in _KEYS)]  # {}: where no keys are set
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operation["responses"].pop("422", None)  # FastAPI's own, which is never sent
            operation["tags"] = [_api_of(path)]
            if example := EXAMPLES.get(f"{method.upper()} {path}"):
                _describe(operation, example, _ERRORS[_shape_of(path)])
    return document


def page(document: Json) -> str:
    """The document for people, in one page that fetches nothing."""
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    apis = dict.fromkeys(operation["tags"][0] for _, _, operation in operations)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(document['info']['title'])}</title>",
        f"<style>{_STYLE}</style><h1>{escape(document['info']['title'])} {escape(document['info']['version'])}</h1>",
        "<p>For programs: <a href=/openapi.json>/openapi.json</a></p>",
    ]
    for api in apis:
        parts.append(f"<h2>{escape(api)}</h2>")
        parts += [
            _section(path, method, operation, document)
            for path, method, operation in operations
            if operation["tags"] == [api]
        ]
    return "\n".join(parts)


def _api_of(path: str) -> str:
    if path.startswith("/v1/"):
        return "Anthropic" if path.startswith("/v1/messages") else "OpenAI"
    if path.startswith("/api/"):
        return "Ollama"
    return "Daemon" if path in ("/", "/health", "/metrics", "/docs") else "llama.cpp, vLLM"


def _shape_of(path: str) -> str:
    api = _api_of(path)
    return api if api in _ERRORS else "OpenAI"


def _describe(operation: Json, example: Example, error: Json) -> None:
    operation["summary"] = example.summary
    if example.body is not None:
        operation["requestBody"]["content"]["application/json"]["example"] = example.body
    kind = "text/plain" if isinstance(example.answer, str) else "application/json"
    content: Json = {kind: {"example": example.answer}}
    if example.stream is not None:
        content[example.stream] = {"schema": {"type": "string"}}
    operation["responses"] = {
        "200": {"description": "The answer", "content": content},
        "4XX": _failure("The request is at fault: the message names the field", error),
        "5XX": _failure("The daemon or the model's worker is at fault, or there is no room", error),
    }


def _failure(description: str, error: Json) -> Json:
    return {"description": description, "content": {"application/json": {"example": error}}}


def _section(path: str, method: str, operation: Json, document: Json) -> str:
    title = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation.get('summary', ''))}"
    parts = [f"<details><summary>{title}</summary>"]
    if description := operation.get("description"):
        parts.append(f"<p>{escape(description)}</p>")
    if body := operation.get("requestBody"):
        content = body["content"]["application/json"]
        parts += ["<h4>Body</h4>", _fields(content["schema"]["$ref"], document)]
        parts.append(_shown(content.get("example")))
    for status, response in operation["responses"].items():
        parts.append(f"<h4>{status}: {escape(response['description'])}</h4>")
        for kind, content in response.get("content", {}).items():
            parts.append(f"<p><code>{escape(kind)}</code></p>{_shown(content.get('example'))}")
    return "".join([*parts, "</details>"])


def _fields(reference: str, document: Json) -> str:
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code><td>{escape(_type_of(field))}<td>{'required' * (name in required)}"
        for name, field in schema["properties"].items()
    ]
    return f"<table>{''.join(rows)}</table>"


def _type_of(field: Json) -> str:
    if "$ref" in field:
        return "object"
    if "enum" in field:
        return " or ".join(json.dumps(value) for value in field["enum"])
    kinds = [_type_of(one) for one in field.get("anyOf", ()) if one.get("type") != "null"]
    if kinds:
        return " or ".join(dict.fromkeys(kinds))
    kind = str(field.get("type", "any"))
    return f"list of {_type_of(field.get('items', {}))}" if kind == "array" else kind


def _shown(example: Any) -> str:
    if example is None:
        return ""
    text = (
        example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)
    )
    return f"<pre>{escape(text)}</pre>"
