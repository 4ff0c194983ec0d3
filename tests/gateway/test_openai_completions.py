"""Text completions of the OpenAI routes, whole answers and what is refused (OK-01, OK-02)."""

from __future__ import annotations

import pytest
from openai_harness import Json, MakeSite, post, post_all


def test_completions_take_every_form_of_prompt_ok01(make_site: MakeSite) -> None:
    site = make_site()
    a, b = ord("a"), ord("b")
    forms = {
        "xa": ["Hello world"],
        ("a", "b"): ["Hello world", "A B C D E F G"],
        (b, a): ["Hello world"],
        ((a,), (b,)): ["Hello world", "A B C D E F G"],
    }
    bodies = [{"model": "tiny", "prompt": prompt} for prompt in forms]
    answers = post_all(site, *(("/v1/completions", body) for body in bodies))
    for (status, answer, _), texts in zip(answers, forms.values(), strict=True):
        assert status == 200
        assert answer["object"] == "text_completion"
        assert answer["id"].startswith("cmpl-")
        assert [choice["text"] for choice in answer["choices"]] == texts


def test_completion_choices_of_several_prompts_are_counted_through_ok02(
    make_site: MakeSite,
) -> None:
    body = {"model": "tiny", "prompt": ["a", "b"], "n": 2, "best_of": 2}
    answer = post(make_site(), "/v1/completions", body)[1]
    texts = [(choice["index"], choice["text"][:1]) for choice in answer["choices"]]
    assert texts == [(0, "H"), (1, "H"), (2, "A"), (3, "A")]
    assert answer["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [512]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt"),
        ({"prompt": [1e300]}, "prompt"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "suffix": "x"}, "echo"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_wrong_completions_are_refused(make_site: MakeSite, fields: Json, param: str) -> None:
    body = {"model": "tiny", "prompt": "a", **fields}
    status, answer, _ = post(make_site(), "/v1/completions", body)
    assert status == 400
    assert answer["error"]["param"] == param
    assert len(answer["error"]["message"]) < 200


def test_no_prompt_is_the_beginning_of_a_text(make_site: MakeSite) -> None:
    site = make_site()
    assert post(site, "/v1/completions", {"model": "tiny", "prompt": "", "max_tokens": 1})[0] == 200
    (request,) = site.workers[0].requests
    assert len(request.token_ids) == 1  # BOS
