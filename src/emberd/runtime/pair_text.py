"""One WGSL module of two: what both texts say alike is kept once, the second's other declarations get a suffix.

Text in, text out: it knows declarations and names of WGSL, and no kernel. Comments go.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

SUFFIX = "_second"
"""Of names of the second module: declarations, fields of its `Params`."""

FIRST_GROUPS = "first_groups"
"""The field of `Params` with the first module's workgroups in x."""

_PARAMS = {"Params", "params"}
_COMMENT = re.compile(r"//[^\n]*")
_SIGN = re.compile(r"[(){};]")
_DECLARED = re.compile(r"\b(?:fn|struct|alias|const|var\s*<[^>]*>)\s*(\w+)")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")  # no member, no part of a number
_WORD_OF_STRUCT = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w|\s*:)")
_BINDING = re.compile(r"@group\(0\) @binding\((\d+)\)")
_FIELDS = re.compile(r"struct Params\s*\{(.*?),?\s*\}", re.DOTALL)
_FIELD_USE = re.compile(r"\bparams\.(\w+)")
_ATTRIBUTE = re.compile(r"@\w+(?:\([^)]*\))?\s*")
_ARGUMENT = re.compile(r"@builtin\((\w+)\)\s*(\w+)\s*:")


def paired_text(first: str, second: str, entry: str, shared: Collection[str]) -> str:
    """The module whose workgroups up to `first_groups` in x do as `first`, and those behind it as `second`.

    Both have an entry point `entry` with the same arguments and a uniform `params: Params`, whose fields then follow
    each other. The second's bindings in `shared` are the first's, its others come behind them. Raises ValueError for
    a declaration that it does not know.
    """
    ours, theirs = _declarations(first), _declarations(second)
    head = _head(ours[entry])
    assert _head(theirs[entry]) == head, (head, _head(theirs[entry]))
    own = _differing(ours, theirs, {entry, *_PARAMS}, shared)
    added = [
        _renamed(text, own) for name, text in theirs.items() if name in own - {entry, *_PARAMS}
    ]
    kept = [text for name, text in ours.items() if name not in {entry, *_PARAMS}]
    bindings = [*_by_number(kept), *_by_number(added)]
    fields = [
        _fields(ours["Params"]),
        re.sub(r"(\w+)\s*:", rf"\1{SUFFIX}:", _fields(theirs["Params"])),
    ]
    parts = [
        f"struct Params {{ {', '.join(fields)}, {FIRST_GROUPS}: u32 }}",
        *(text for text in [*kept, *added] if text not in bindings),
        *(_BINDING.sub(f"@group(0) @binding({n})", text) for n, text in enumerate(bindings)),
        f"@group(0) @binding({len(bindings)}) var<uniform> params: Params;",
        _function(ours[entry]).replace(f"fn {entry}(", f"fn {entry}_first(", 1),
        _function(_renamed(theirs[entry], own)),
        _entry(head, entry),
    ]
    return "\n".join(parts) + "\n"


def _declarations(text: str) -> Mapping[str, str]:
    """Declarations of a module by name, in order, without comments."""
    text = _COMMENT.sub("", text)
    found: dict[str, str] = {}
    depth = start = 0
    for match in _SIGN.finditer(text):
        sign = match.group()
        depth += (sign in "{(") - (sign in "})")
        if depth or sign not in "};":
            continue
        declaration = text[start : match.end()].strip()
        start = match.end()
        if declaration == ";":
            continue
        name = _DECLARED.search(declaration)
        if name is None:
            raise ValueError(f"a module that says {declaration!r} cannot be one of a pair")
        found[name.group(1)] = declaration
    return found


def _differing(
    ours: Mapping[str, str], theirs: Mapping[str, str], apart: set[str], shared: Collection[str]
) -> set[str]:
    """Names of `theirs` whose text, or that of anything they refer to, is another in `ours`."""
    own = {
        name
        for name, text in theirs.items()
        if name in apart or ours.get(name) != text or (_BINDING.search(text) and name not in shared)
    }
    uses = {name: set(_words(text).findall(text)) for name, text in theirs.items()}
    while more := {name for name in theirs if name not in own and uses[name] & own}:
        own |= more
    return own


def _renamed(text: str, own: set[str]) -> str:
    """A declaration of the second module with the suffix on its own names and on fields of its `params`."""

    def renamed(match: re.Match[str]) -> str:
        name = match.group()
        return name + SUFFIX if name in own and name not in _PARAMS else name

    return _FIELD_USE.sub(rf"params.\1{SUFFIX}", _words(text).sub(renamed, text))


def _words(declaration: str) -> re.Pattern[str]:
    """What finds the names that it refers to, and its own."""
    return _WORD_OF_STRUCT if declaration.startswith("struct") else _WORD


def _by_number(texts: Iterable[str]) -> list[str]:
    """Those that are bindings, in the order of their numbers."""
    found = [(int(match.group(1)), text) for text in texts if (match := _BINDING.search(text))]
    return [text for _, text in sorted(found)]


def _fields(struct: str) -> str:
    found = _FIELDS.search(struct)
    assert found is not None, struct
    return found.group(1).strip()


def _head(function: str) -> str:
    return function[: function.index("{")].strip()


def _function(entry: str) -> str:
    """An entry point as a plain function."""
    return _ATTRIBUTE.sub("", entry)


def _entry(head: str, entry: str) -> str:
    """The entry point, which goes on to one of the two. Its grid's width tells them nothing."""
    arguments = _ARGUMENT.findall(head)
    (group,) = (name for builtin, name in arguments if builtin == "workgroup_id")
    first = [name for _, name in arguments]
    behind = f"{group} - vec3<u32>(params.{FIRST_GROUPS}, 0u, 0u)"
    second = [behind if name == group else name for name in first]
    return (
        f"{head} {{\n"
        f"  if ({group}.x < params.{FIRST_GROUPS}) {{ {entry}_first({', '.join(first)}); }}\n"
        f"  else {{ {entry}{SUFFIX}({', '.join(second)}); }}\n"
        f"}}"
    )
