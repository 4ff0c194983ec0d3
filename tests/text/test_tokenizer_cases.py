"""Ids as llama.cpp gives them, over the handed vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emberd.gguf.reader import GGUFFile
from emberd.text.tokenizer import Tokenizer

VOCABULARIES = ("gpt-2", "llama-spm", "deepseek-llm", "starcoder", "bert-bge")
WITHOUT_VOCABULARY = ("llama-bpe", "command-r")
MODELS = {
    "smollm2-135m": "smollm2_path",
    "gemma3-270m": "gemma3_path",
    "qwen2.5-coder-0.5b": "qwen_path",
}


def load(path: Path) -> Tokenizer:
    file = GGUFFile(path)
    try:
        return Tokenizer.from_metadata(file.metadata)
    finally:
        file.close()


def cases(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["cases"]
    assert found
    return found


def check_ids(tokenizer: Tokenizer, path: Path) -> None:
    for case in cases(path):
        ids = tokenizer.encode(
            case["text"],
            add_special=case.get("add_special", False),
            parse_special=case.get("parse_special", False),
        )
        assert ids in (case["ids"], case.get("nfc_ids")), case


@pytest.mark.cases
@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_of_vocabulary_files(name: str, cases_dir: Path) -> None:
    tokenizer = load(cases_dir / "tokenizer" / f"ggml-vocab-{name}.gguf")
    for file in (f"{name}.json", f"{name}-more.json"):
        check_ids(tokenizer, cases_dir / "tokenizer" / file)


@pytest.mark.cases
@pytest.mark.parametrize("name", WITHOUT_VOCABULARY)
def test_ids_of_vocabularies_that_are_not_here(name: str, cases_dir: Path) -> None:
    vocabulary = cases_dir / "tokenizer" / f"ggml-vocab-{name}.gguf"
    if not vocabulary.is_file():
        pytest.skip(f"{vocabulary.name} is not among the cases")
    check_ids(load(vocabulary), cases_dir / "tokenizer" / f"{name}.json")


@pytest.mark.cases
@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
def test_ids_and_text_of_real_models(
    name: str, cases_dir: Path, request: pytest.FixtureRequest
) -> None:
    tokenizer = load(request.getfixturevalue(MODELS[name]))
    path = cases_dir / "tokenizer" / f"model-{name}.json"
    check_ids(tokenizer, path)
    for case in cases(path):
        text = tokenizer.decode(case["ids"], show_special=True)
        assert text == case.get("detok", case["text"]), case
    if name.startswith("qwen2"):
        check_ids(tokenizer, cases_dir / "tokenizer" / "qwen2.json")


@pytest.mark.model
@pytest.mark.parametrize(
    ("path_fixture", "names"),
    [
        ("smollm2_path", {"<|im_end|>", "<|endoftext|>", "<reponame>"}),
        ("gemma3_path", {"<eos>", "<end_of_turn>"}),
    ],
)
def test_stop_ids_of_real_models(
    path_fixture: str, names: set[str], request: pytest.FixtureRequest
) -> None:
    tokenizer = load(request.getfixturevalue(path_fixture))
    assert {tokenizer.token_text(i) for i in tokenizer.stop_ids} == names
