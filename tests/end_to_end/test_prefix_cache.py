"""K15 of bug_kinds.md: the prefix cache changes nothing but the time and the count of cached tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daemon import Daemon

BLOCK = 16  # of the CPU device


def complete(daemon: Daemon, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"model": "random", "prompt": prompt, "max_tokens": 12, "ignore_eos": True}
    body |= {"temperature": 0, "logprobs": 5, **fields}
    response = daemon.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def explained(daemon: Daemon, answer: dict[str, Any]) -> dict[str, Any]:
    """What is told of its prompt's way through the cache."""
    found = daemon.http.get(f"/api/requests/{answer['id']}").json()
    (prompt,) = found["prompts"]
    assert prompt["cached_tokens"] == cached(answer)
    return dict(prompt)


def check_alike(warm: dict[str, Any], cold: dict[str, Any]) -> None:
    one, other = warm["choices"][0], cold["choices"][0]
    assert (one["text"], one["finish_reason"]) == (other["text"], other["finish_reason"])
    assert one["logprobs"]["tokens"] == other["logprobs"]["tokens"]
    warm_logprobs, cold_logprobs = (
        np.array(choice["logprobs"]["token_logprobs"]) for choice in (one, other)
    )
    assert np.abs(warm_logprobs - cold_logprobs).max() < 1e-4
    assert warm["usage"]["prompt_tokens"] == cold["usage"]["prompt_tokens"]


def test_k15_a_prompt_sent_again_gives_the_same_answer(
    daemon: Daemon, rng: np.random.Generator
) -> None:
    """Three times, and cold again: `cache_prompt` false takes nothing from the cache and leaves nothing there."""
    prompt = rng.integers(0, 200, 200).tolist()
    cold = complete(daemon, prompt, cache_prompt=False)
    answers = [complete(daemon, prompt) for _ in range(3)]
    assert [cached(answer) for answer in (cold, *answers)] == [0, 0, 192, 192]
    for answer in answers:
        check_alike(answer, cold)
        assert answer["usage"]["prompt_tokens"] == 200
    assert cached(complete(daemon, prompt, cache_prompt=False)) == 0
    assert cached(complete(daemon, prompt, cache_salt="somebody else")) == 0


@pytest.mark.parametrize("shared", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_k15_shared_beginnings(daemon: Daemon, rng: np.random.Generator, shared: int) -> None:
    beginning = rng.integers(0, 200, shared).tolist()
    other = beginning + rng.integers(0, 100, 30).tolist()
    first = complete(daemon, other)
    prompt = beginning + rng.integers(100, 200, 30).tolist()
    cold = complete(daemon, prompt, cache_prompt=False)
    warm = complete(daemon, prompt)
    assert cached(warm) == shared // BLOCK * BLOCK
    check_alike(warm, cold)
    assert explained(daemon, cold)["outcome"] == "off"
    told = explained(daemon, warm)
    assert told["nearest"]["request"].endswith(first["id"].rpartition("-")[2])
    difference = told["difference"]
    assert (difference["position"], difference["token"]["id"]) == (shared, prompt[shared])
    assert difference["nearest_token"]["id"] == other[shared]
    whole = complete(daemon, prompt[: 2 * BLOCK])  # a prompt that is known to its end
    check_alike(whole, complete(daemon, prompt[: 2 * BLOCK], cache_prompt=False))
    assert cached(whole) == BLOCK


def test_k15_cached_tokens_are_told_in_every_dialect_oc25(
    daemon: Daemon, rng: np.random.Generator
) -> None:
    """A chat's next turn; every count of prompt tokens stays the full one."""
    word = "".join(map(chr, rng.integers(97, 123, 60).tolist()))
    turns = [{"role": "user", "content": f"{word} is what I say"}]

    def post(path: str, **fields: Any) -> Any:
        body = {"model": "random", "messages": turns, "stream": False, **fields}
        response = daemon.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    first = post("/v1/chat/completions", max_tokens=4)["usage"]
    number = first["prompt_tokens"]
    known = (number - 1) // BLOCK * BLOCK
    assert cached({"usage": first}) < known  # of the template's beginning at most
    chat = post("/v1/chat/completions", max_tokens=4)["usage"]
    assert (chat["prompt_tokens"], cached({"usage": chat})) == (number, known)
    native = post("/api/chat", options={"num_predict": 4})
    assert (native["prompt_eval_count"], native["emberd"]["cached_tokens"]) == (number, known)
    message = post("/v1/messages", max_tokens=4)["usage"]
    assert message["cache_read_input_tokens"] == known
    assert message["input_tokens"] == number - known
    choices = post("/v1/chat/completions", max_tokens=4, n=3)["usage"]
    assert (choices["prompt_tokens"], cached({"usage": choices})) == (number, known)
