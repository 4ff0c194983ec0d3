"""Random JSON schemas of the keywords that are enforced; every one has values."""

from __future__ import annotations

from typing import Any

import numpy as np

Json = dict[str, Any]
_NAMES = ["n", "name", "a b", "größe", "x-y", 'q"', "\\", "tags", "items", "$ref"]
_PATTERNS = ["^[a-z]{2,4}$", "^\\d+$", "b", "^(yes|no)$", "^[^x]*$"]
_FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email"]


class RandomSchemas:
    """`short`: whose values are short, for models that would hardly ever end a text."""

    def __init__(self, seed: int, *, short: bool = False) -> None:
        self._rng = np.random.default_rng(seed)
        self._short = short

    def schema(self, depth: int = 3) -> Json:
        """An object."""
        schema = self._object(depth)
        if self._chance(0.3):
            schema["$defs"] = {"d": self.any(1)}
            schema["properties"]["again"] = {"$ref": "#/$defs/d"}
        if self._chance(0.2):
            schema["properties"]["next"] = {"anyOf": [{"type": "null"}, {"$ref": "#"}]}
        return schema

    def any(self, depth: int) -> Json:
        kinds = ["string", "integer", "number", "enum", "const", "boolean", "null"]
        if depth > 0:
            kinds += ["object", "array", "anyOf", "oneOf", "allOf", "types", "map", "tuple"]
        kind = str(self._rng.choice(kinds))
        match kind:
            case "string":
                return self._string()
            case "integer" | "number":
                return self._number(kind)
            case "enum":
                return {"enum": [1, "x", None, True, 2.5, {"a": ["b"]}][: self._int(1, 7)]}
            case "const":
                return {"const": self._pick(["c", 5, -0.5, None, [1, "é\n"], {"k": '"'}])}
            case "object":
                return self._object(depth - 1)
            case "array":
                low = self._int(0, 3)
                return {
                    "type": "array",
                    "items": self.any(depth - 1),
                    "minItems": low,
                    "maxItems": low + 2,
                }
            case "tuple":
                return {
                    "type": "array",
                    "prefixItems": [self.any(0), self.any(0)],
                    "items": False,
                    "minItems": 1,
                }
            case "anyOf":
                return {"anyOf": [self.any(depth - 1), self.any(depth - 1)]}
            case "oneOf":
                return {"oneOf": [self._tagged(depth, "a"), self._tagged(depth, "b")]}
            case "allOf":
                return {
                    "allOf": [
                        {"type": "object", "properties": {"p": self.any(0)}},
                        {"required": ["p"]},
                    ]
                }
            case "types":
                return {"type": ["string", "null", "integer"], "maxLength": 3, "minimum": 7}
            case "map":
                return {"type": "object", "additionalProperties": self.any(0), "maxProperties": 2}
        return {"type": kind}

    def _object(self, depth: int) -> Json:
        count = self._int(1, 4)
        names = [str(name) for name in self._rng.choice(_NAMES, count, replace=False)]
        schema: Json = {"type": "object", "properties": {name: self.any(depth) for name in names}}
        schema["required"] = [name for name in names if self._chance(0.6)]
        if self._short or self._chance(0.6):
            schema["additionalProperties"] = False
        elif self._chance(0.5):
            schema["additionalProperties"] = {"type": "integer"}
        return schema

    def _tagged(self, depth: int, tag: str) -> Json:
        properties = {"kind": {"const": tag}, "value": self.any(depth - 1)}
        return {"type": "object", "properties": properties, "required": ["kind"]}

    def _string(self) -> Json:
        schema: Json = {"type": "string"}
        match self._int(0, 4):
            case 0:
                low = self._int(0, 3)
                schema |= {"minLength": low, "maxLength": low + 3}
            case 1:
                schema["pattern"] = self._pick(_PATTERNS)
            case 2:
                schema["format"] = self._pick(_FORMATS)
        if self._short and "format" not in schema:
            schema.setdefault("maxLength", 8)
        return schema

    def _number(self, kind: str) -> Json:
        schema: Json = {"type": kind}
        match self._int(0, 4):
            case 0:
                schema |= {"minimum": -self._int(0, 20), "maximum": self._int(0, 20)}
            case 1:
                schema |= {"exclusiveMinimum": self._int(-5, 5)}
            case 2 if kind == "integer":
                schema |= {"multipleOf": self._int(2, 9)}
        return schema

    def _pick(self, values: list[Any]) -> Any:
        return values[self._int(0, len(values))]

    def _int(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high))

    def _chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)
