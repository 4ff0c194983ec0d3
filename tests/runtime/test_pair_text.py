"""Two modules as one, as text: no device."""

from __future__ import annotations

import re

import pytest

from emberd.runtime.pair_text import paired_text

HEAD = """@compute @workgroup_size(WG)
fn k(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {"""

FIRST = f"""// a comment; with signs }}
const WG: u32 = 8u;
const SIZE = 4u;
struct Params {{ n: u32, eps: f32 }}
struct Item {{ scales: f32, n: u32 }}
@group(0) @binding(9) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(0) var<storage, read> scales: array<f32>;
@group(0) @binding(11) var<uniform> params: Params;
var<workgroup> tile: array<f32, WG>;
fn size() -> u32 {{ return SIZE; }}
fn item(i: u32) -> Item {{ return Item(x[i], 1u); }}
fn value(i: u32) -> f32 {{ return item(i).scales * scales[i]; }}
{HEAD}
  for (var i = thread; i < params.n; i += size()) {{ y[i] = value(i) + params.eps + tile[i]; }}
}}
"""
SECOND = FIRST.replace("SIZE = 4u", "SIZE = 5u")
OF_ALL = {"x", "y", "scales"}


def declared(text: str) -> list[str]:
    """Names of all declarations."""
    return re.findall(r"\b(?:fn|struct|const|var<[^>]*>) (\w+)", text)


def test_what_is_the_same_is_kept_once() -> None:
    text = paired_text(FIRST, FIRST, "k", OF_ALL)
    names = declared(text)
    assert len(names) == len(set(names)), names
    assert {name for name in names if "_second" in name} == {"k_second"}
    assert "comment" not in text


def test_what_differs_is_renamed_with_all_that_refers_to_it() -> None:
    text = paired_text(FIRST, SECOND, "k", OF_ALL)
    second = {name for name in declared(text) if name.endswith("_second")}
    assert second == {"SIZE_second", "size_second", "k_second"}
    assert "const SIZE = 4u;" in text and "const SIZE_second = 5u;" in text
    assert "fn size_second() -> u32 { return SIZE_second; }" in text
    assert "i += size_second()" in text and "i += size()" in text
    assert "y[i] = value(i) + params.eps_second + tile[i];" in text


def test_bindings_that_are_not_shared_follow_the_first_ones() -> None:
    text = paired_text(FIRST, FIRST, "k", {"x"})
    found = re.findall(r"@binding\((\d+)\) var<([\w, ]+)> (\w+)", text)
    assert sorted((int(n), name) for n, _, name in found) == list(
        enumerate(["scales", "x", "y", "scales_second", "y_second", "params"])
    )
    assert found[-1][1] == "uniform"
    # A member of a struct keeps its name, where a binding of that name has another now.
    assert "return item(i).scales * scales_second[i];" in text
    assert "struct Item_second" not in text


def test_params_follow_each_other() -> None:
    text = paired_text(FIRST, FIRST, "k", OF_ALL)
    assert (
        "struct Params { n: u32, eps: f32, n_second: u32, eps_second: f32, first_groups: u32 }"
        in text
    )
    assert "i < params.n_second;" in text and "i < params.n;" in text


def test_the_entry_point_goes_on_to_one_of_both() -> None:
    text = paired_text(FIRST, SECOND, "k", OF_ALL)
    assert text.count("@compute") == 1 and text.count("@builtin") == 2
    assert "if (group.x < params.first_groups) { k_first(group, thread); }" in text
    assert "else { k_second(group - vec3<u32>(params.first_groups, 0u, 0u), thread); }" in text


def test_an_unknown_declaration_is_refused() -> None:
    with pytest.raises(ValueError, match="enable f16"):
        paired_text("enable f16;\n" + FIRST, FIRST, "k", OF_ALL)
