"""WGSL text from `shaders/`: one include directive, one constant prelude, nothing else.

A kernel's file may say `#include "path.wgsl"` on a line of its own; `${name}` in the path is filled from
`includes`. Each file is taken once. An unknown file or name raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

Constant = bool | int | float

_INCLUDE = re.compile(r'^#include "([^"]+)"\s*$', re.MULTILINE)
_NAME = re.compile(r"\$\{(\w+)\}")
_OVERRIDE = re.compile(r"^override (\w+)\s*:", re.MULTILINE)


@cache
def shader_dir() -> Path:
    """`shaders/` of the installed package, else of the checkout. `EMBERD_SHADERS` names another."""
    if named := os.environ.get("EMBERD_SHADERS"):
        return Path(named)
    package = Path(__file__).parent.parent
    for folder in (package / "shaders", package.parent.parent / "shaders"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError("the shaders folder is missing from this installation")


def compose(
    name: str, constants: Mapping[str, Constant], includes: Mapping[str, str]
) -> tuple[str, dict[str, Constant]]:
    """The module's text, and those constants that its `override` declarations take at pipeline creation.

    Constants without an `override` declaration become `const` lines ahead of the body.
    """
    body = _expand(f"{name}.wgsl", includes, set())
    overrides = {key: constants[key] for key in _OVERRIDE.findall(body) if key in constants}
    lines = [_const(key, value) for key, value in constants.items() if key not in overrides]
    return "\n".join([*lines, body]), overrides


def _expand(path: str, includes: Mapping[str, str], seen: set[str]) -> str:
    if path in seen:
        return ""
    seen.add(path)
    file = shader_dir() / path
    if not file.is_file():
        raise FileNotFoundError(f"shader file {path} does not exist")

    def replace(match: re.Match[str]) -> str:
        return _expand(_NAME.sub(lambda m: includes[m.group(1)], match.group(1)), includes, seen)

    return _INCLUDE.sub(replace, file.read_text(encoding="utf-8"))


def _const(name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"const {name}: bool = {str(value).lower()};"
    if isinstance(value, int):
        return f"const {name}: u32 = {value}u;"
    return f"const {name}: f32 = {value!r}f;"
