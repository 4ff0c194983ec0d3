"""Docs cannot rot: what the code has is documented, and what the docs name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from emberd import __version__
from emberd.cli.app import app as cli
from emberd.cli.settings import flag_of
from emberd.config import settings
from emberd.gateway.app import MODULES
from emberd.gguf.architectures import ARCHITECTURES
from emberd.gguf.dequant import QUANT_TYPES
from emberd.gguf.encoder import ENCODER_ARCHITECTURES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
DOCS = "\n".join([README, *PAGES.values()])


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_readme_begins_with_the_two_commands_and_their_output() -> None:
    commands = [
        line.removeprefix("$ ")
        for block in code_blocks(README)
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    assert commands[:2] == ["scripts/run --check", "scripts/test"]
    first, second = code_blocks(README)[:2]
    assert re.search(r"^answer: +\w", first, re.MULTILINE)
    assert re.search(r"^=+ \d+ passed.* =+$", second, re.MULTILINE)


def test_every_page_is_in_the_index() -> None:
    for name in PAGES.keys() - {"index.md"}:
        assert f"({name})" in PAGES["index.md"], name
    assert "docs/index.md" in README


@pytest.mark.parametrize("name", ["README.md", *PAGES])
def test_links_lead_somewhere(name: str) -> None:
    folder = ROOT if name == "README.md" else ROOT / "docs"
    text = README if name == "README.md" else PAGES[name]
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (folder / target).exists(), target


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_command_is_documented() -> None:
    for command in cli.registered_commands:
        name = command.name or command.callback.__name__  # type: ignore[union-attr]
        assert f"## emberd {name}" in PAGES["commands.md"]


def test_every_setting_is_documented() -> None:
    for setting in settings():
        row = next(
            line for line in PAGES["configuration.md"].splitlines() if f"`{setting.env}`" in line
        )
        assert f"`{flag_of(setting)}`" in row and setting.help.replace("|", "\\|") in row


def test_every_variable_in_the_code_is_documented() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    for path in files:
        for name in re.findall(r"\bEMBERD_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")):
            assert f"`{name}`" in PAGES["configuration.md"], f"{path.name}: {name}"


def test_every_route_is_documented() -> None:
    found = {
        (method, re.sub(r":\w+}", "}", route.path))
        for module in MODULES
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    assert {("POST", "/v1/chat/completions"), ("GET", "/api/ps"), ("GET", "/health")} <= found
    for method, path in found:
        assert f"`{method} {path}`" in DOCS, (method, path)


def test_every_tensor_type_and_architecture_is_in_the_support_table() -> None:
    for kind in QUANT_TYPES:
        assert kind.name in README, kind.name
    for architecture in (*ARCHITECTURES, *ENCODER_ARCHITECTURES):
        assert f"`{architecture}`" in README, architecture


def test_every_tensor_type_passed_its_tests_where_they_ran_last() -> None:
    lines = re.findall(r"^\| .* passed.*", PAGES["quantization.md"], re.MULTILINE)
    rows = [line.split(" | ") for line in lines]
    assert {row[0].removeprefix("| ") for row in rows} == {kind.name for kind in QUANT_TYPES}
    for row in rows:
        assert all(re.match(r"[1-9]\d* passed", cell) for cell in row[2:]), row


def test_changelog_speaks_of_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## \[(\d+\.\d+\.\d+)\]", text, re.MULTILINE)
    assert first is not None and first[1] == __version__


def test_docs_name_no_machine_paths() -> None:
    assert not re.search(r"/work/|/root/|/home/", DOCS)
