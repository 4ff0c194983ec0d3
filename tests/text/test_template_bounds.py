"""What templates may not spend: each of these texts once filled memory or ran for ever."""

from __future__ import annotations

import pytest

from emberd.errors import BadRequestError
from emberd.text import bounds
from emberd.text.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source",
    [
        '{{ "x" * 10**9 }}',
        '{{ "x" * 1000000000 }}',
        "{{ [1] * 1000000000 }}",
        "{{ 2**99999999 }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ '%0999999999d'|format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'ab'|replace('', 'x' * 10000000) }}",
        "{{ ('a' * 5000000)|urlize }}",
        "{{ lipsum(n=100000) }}",
        "{{ [1]|batch(1000000000, 'x')|list }}",
        "{{ messages|tojson(indent=1000000000) }}",
        "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{" * 50_000,
        "x" * (bounds.MAX_SOURCE + 1),
    ],
)
def test_little_is_not_made_into_much(source: str) -> None:
    with pytest.raises(BadRequestError, match="template"):
        ChatTemplate(source).render(MESSAGES)


def test_a_template_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberd.text.template.time_limit", lambda: bounds.time_limit(0.2))
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(BadRequestError, match="longer than"):
        ChatTemplate(loops).render(MESSAGES)


def test_what_templates_do_still_works() -> None:
    source = (
        "{{ 'a' ~ 1 ~ none }}|{{ 'ab' * 2 }}|{{ 7 % 3 }}|{{ '%s-%d' % ('a', 3) }}|{{ 'x'|center(3) }}|"
        "{{ messages|map(attribute='content')|join(', ') }}|{{ 'a' + 'b' }}|{{ [1] + [2] }}|"
        "{{ '{}'.format(1) }}|{{ messages[0]|tojson(indent=2)|length }}"
    )
    assert ChatTemplate(source).render(MESSAGES) == ("a1None|abab|1|a-3| x |hi|ab|[1, 2]|1|39")
