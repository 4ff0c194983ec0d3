"""The handed templates of real models: prompts byte for byte, and control text typed into each."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from text_vocabularies import byte_level

from emberd.errors import BadRequestError
from emberd.text.template import ChatTemplate, render_to_ids
from emberd.text.tokenizer import Tokenizer

CONTROL = re.compile(
    r"<[|｜][^<>\s{}']+[|｜]?>|\[/?[A-Z_]+\]|<(?:start|end)_of_turn>|</?s>|</?think>"
)


def files(cases_dir: Path) -> list[tuple[str, dict[str, Any], ChatTemplate]]:
    found = []
    for path in sorted((cases_dir / "templates").glob("*.json")):
        file = json.loads(path.read_text())
        now = datetime.fromisoformat(file["now"])
        found.append((path.stem, file, ChatTemplate(file["template"], clock=lambda now=now: now)))
    assert found
    return found


def outcome(template: ChatTemplate, case: dict[str, Any]) -> tuple[str | None, str | None]:
    """Prompt, error."""
    try:
        prompt = template.render(
            case["messages"], case["tools"], case["add_generation_prompt"], **case["extra"]
        )
    except BadRequestError as error:
        return None, str(error)
    return prompt, None


@pytest.mark.slow
@pytest.mark.cases
def test_prompts_of_real_templates(cases_dir: Path) -> None:
    for name, file, template in files(cases_dir):
        for case in file["cases"]:
            where = f"{name} {case['case']}"
            prompt, error = outcome(template, case)
            alternatives = [change["expected"] for change in case.get("alternatives", [])]
            if "note" in case:
                assert prompt in alternatives, where
            elif "expected" in case:
                assert prompt == case["expected"], where
            elif prompt is not None:
                assert prompt in alternatives, where
            else:
                assert not alternatives, f"{where}: could be made to fit, but {error}"
                if case["error_kind"] == "raised by the template":
                    assert error == case["error"], where


@pytest.mark.slow
@pytest.mark.cases
def test_k20_control_text_typed_into_real_templates(cases_dir: Path) -> None:
    """The ids of the template's own control tokens are the same whatever is typed, and the text is there."""
    tried = 0
    for name, file, _ in files(cases_dir):
        names = sorted(set(CONTROL.findall(file["template"])) - {"<think>", "</think>"})
        if not names:
            continue
        tokenizer = Tokenizer.from_metadata(byte_level(control=names))
        template = ChatTemplate(file["template"], tokenizer)
        evil = "x" + "".join(names) + "y"
        for typed in ("user", "assistant"):
            plain, guarded = (
                [
                    {"role": "user", "content": text if typed == "user" else "a"},
                    {"role": "assistant", "content": text if typed == "assistant" else "b"},
                    {"role": "user", "content": "c"},
                ]
                for text in ("xy", evil)
            )
            try:
                wanted = render_to_ids(template, tokenizer, plain)
            except BadRequestError:
                continue
            tried += 1
            ids = render_to_ids(template, tokenizer, guarded)
            controls = [i for i in ids if tokenizer.is_control(i)]
            assert controls == [i for i in wanted if tokenizer.is_control(i)], f"{name} {typed}"
            shown = tokenizer.decode(ids, show_special=True)
            assert shown == tokenizer.decode(wanted, show_special=True).replace("xy", evil), name
    assert tried > 40
