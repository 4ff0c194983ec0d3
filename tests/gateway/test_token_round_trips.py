"""/tokenize and /detokenize with real vocabularies: the handed ids, and back to the handed texts. No worker starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from site_fakes import Site, run

MakeSite = Callable[..., Site]
pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]
MODELS = {
    "smollm2-135m": "smollm2_path",
    "gemma3-270m": "gemma3_path",
    "qwen2.5-coder-0.5b": "qwen_path",
}


@pytest.mark.parametrize("model", MODELS)
def test_texts_go_to_ids_and_back_exactly_cl18(
    request: pytest.FixtureRequest, make_site: MakeSite, tmp_path: Path, cases_dir: Path, model: str
) -> None:
    path: Path = request.getfixturevalue(MODELS[model])
    cases = json.loads((cases_dir / "tokenizer" / f"model-{model}.json").read_text())["cases"]
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "real.gguf").symlink_to(path)
    site = make_site(models_dir=tmp_path / "own")

    async def work() -> list[str]:
        faults = []
        async with site.client() as client:
            for case in cases:
                options = {name: case[name] for name in ("add_special", "parse_special")}
                body: dict[str, Any] = {"model": "real", "content": case["text"], **options}
                ids = (await client.post("/tokenize", json=body)).json()["tokens"]
                if ids != case["ids"]:
                    faults.append(f"{case['text']!r} gives {ids}")
                back = await client.post("/detokenize", json={"model": "real", "tokens": ids})
                text, wanted = back.json()["content"], case.get("detok", case["text"])
                if text != wanted:
                    faults.append(f"{wanted!r} comes back as {text!r}")
        return faults

    assert run(work()) == []
    assert site.workers == []
