"""Real models under a grammar, through a real worker: byte-level BPE and SentencePiece write what fits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from emberd.models.loaded import ModelText
from emberd.protocol import GenerateRequest, SamplingParams, SequenceUpdate, WorkerOptions
from emberd.worker.client import WorkerClient, _merge

pytestmark = [pytest.mark.model, pytest.mark.slow]

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "people": {"type": "integer", "minimum": 0, "maximum": 9999999},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.device)])
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_replies_fit_their_schema_k08(
    model: str, device: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Greedy and hot, beside one without a grammar, which is told its log-probabilities."""
    path: Path = request.getfixturevalue(model)
    text = ModelText.load(path)
    prompt = [{"role": "user", "content": "Tell me of Paris, é 🙂, as JSON."}]
    ids = tuple(text.chat_ids(prompt, add_generation_prompt=True))
    stops = tuple(text.tokenizer.stop_ids)
    grammar = f"start: %json {json.dumps(SCHEMA)}"

    def asked(name: str, temperature: float, grammar: str | None) -> GenerateRequest:
        params = SamplingParams(
            temperature=temperature,
            seed=7,
            max_tokens=60 if grammar else 8,
            stop_token_ids=stops,
            grammar=grammar,
            num_logprobs=None if grammar else 2,
        )
        return GenerateRequest(name, ids, params, None if grammar else 1)

    async def scenario() -> list[SequenceUpdate]:
        options = WorkerOptions(str(path), device, context_length=512, max_sequences=4)
        worker = await WorkerClient.start(options)
        worker.token_table = text.token_table

        async def reply(asked: GenerateRequest) -> SequenceUpdate:
            return _merge([update async for update in worker.generate(asked)])

        try:
            return await asyncio.gather(
                reply(asked("greedy", 0.0, grammar)),
                reply(asked("hot", 1.5, grammar)),
                reply(asked("free", 0.0, None)),
            )
        finally:
            await worker.close()

    greedy, hot, free = asyncio.run(asyncio.wait_for(scenario(), 280))
    for update in (greedy, hot):
        assert update.finish_reason == "stop", update.error
        value = json.loads(text.tokenizer.decode(update.token_ids))
        assert set(value) == {"city", "people"} and isinstance(value["people"], int)
    assert len(free.prompt_logprobs) == len(ids) - 1
    assert [one.token_id for one in free.logprobs] == list(free.token_ids)
    for one in free.logprobs:  # greedy: the likeliest is taken
        assert one.top[0] == (one.token_id, one.logprob) and one.top[1][1] <= one.logprob <= 0
