"""What templates may not spend: each of these texts once filled memory or ran for ever."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from text_vocabularies import byte_level

from emberd.errors import BadRequestError, ContextOverflowError
from emberd.text import bounds
from emberd.text.sandbox import variables_of
from emberd.text.spending import MAX_TEXT
from emberd.text.template import ChatTemplate, render_to_ids
from emberd.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

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
        "{{ 1.5|round(1000000000, 'ceil') }}",
        "{{ [1]|slice(1000000000, 'x')|list }}",
        "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% for i in range(9999) %}{{ 'x' * 9999999 }}{% endfor %}",
        "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set n = namespace(x='x' * 9) %}"
        "{% for i in range(60) %}{% set n.x = f(n.x) %}{% endfor %}",
        "{% set n = namespace(x='x' * 9) %}"
        "{% for i in range(60) %}{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}",
        "{% set x = 'x' * 9999999 %}{% set n = namespace(p=1) %}"
        "{% for i in range(999) %}{% set n.p = namespace(p=n.p, x=x[1:]) %}{% endfor %}",
        "{{ (['x' * 999999] * 99999)|join }}",
        "{{ ''.join(['x' * 999999] * 99999) }}",
        "{{ (range(9999)|map('replace', 'y', 'x' * 9999)|join('x' * 99999)) }}",
        "{{ range(99999)|join('x' * 9999999) }}",
        "{{ ('%s' * 9999)|format(*(['x' * 9999] * 9999)) }}",
        "{{ ('%s' * 9999) % ('x' * 9999) }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ ('{0}' * 9999).format('x' * 9999) }}",
        "{{ '{:{w}}'.format('x', w=999999999) }}",
        "{{ ('{' + ':' * 9999999).format('x') }}",
        "{{ 'x'|center(99999) }}" * 10_000,  # which jinja2 would make while it compiles
        "{{ ('\n' * 999999)|indent(9999) }}",
        "{{ ('\t' * 999999).expandtabs(9999) }}",
        "{{ ('x' * 9999).translate({120: 'y' * 9999}) }}",
        "{{ ('x ' * 9999999)|title }}",
        "{{ ('x ' * 9999)|wordwrap(1, true, 'y' * 9999) }}",
        "{{ [[1] * 99999]|tojson(indent=9999) }}",
        "{{ (1).to_bytes(9999999999, 'big') }}",
        "{{ ('x' * 9).encode().center(9999999999) }}",
        "{{ ('x' * 9999999).rfind('xy' + 'x' * 4999999) }}",
        "{{ ('x' * 9999999).strip('y' * 9999999 + 'x') }}",
        "{{ ([[1] * 9] * 99999)|sum(start=[]) }}",
        "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{" * 50_000,
        "x" * (bounds.MAX_SOURCE + 1),
    ],
)
def test_little_is_not_made_into_much(source: str) -> None:
    with pytest.raises(BadRequestError, match="template"):
        ChatTemplate(source).render(MESSAGES)


def test_nothing_is_looked_for_in_a_template_that_is_too_long() -> None:
    """Parsing this one would take minutes; lists of models ask this of every file."""
    assert variables_of("{{ a }}") == {"a"}
    assert variables_of("{{ a }}" * 5_000_000) == frozenset()


GROWTHS = (
    "[n.x, n.x]",
    "(n.x, n.x)",
    "[n.x] + [n.x]",
    "{1: n.x, 2: n.x}",
    "dict(a=n.x, b=n.x)",
    "{}.fromkeys(range(9), n.x)",
    "cycler(n.x, n.x).items",
    "both(n.x, n.x)",
    "([n.x] * 9)",
    "[1]|batch(9, n.x)|first",
    "range(9)|map(attribute='y', default=n.x)|list",
)


@pytest.mark.parametrize("use", ["n.x|tojson", "n.x|string", "n.x ~ ''", "n.x", "[n.x]|pprint"])
@pytest.mark.parametrize("growth", GROWTHS)
def test_lists_that_hold_one_list_many_times_are_weighed(
    growth: str, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of these uses could be interrupted."""
    monkeypatch.setattr("emberd.text.spending.MAX_ITEMS", 1 << 12)
    macro = "{% macro both() %}{% set n.x = varargs %}{% endmacro %}"
    source = (
        "{% set n = namespace(x=[]) %}"
        + macro
        + "{% for i in range(70) %}{% if BOTH %}{{ both(n.x, n.x) }}{% else %}{% set n.x = GROWTH %}{% endif %}"
        + "{% endfor %}{{ USE }}"
    )
    source = source.replace("BOTH", str(growth.startswith("both"))).replace("USE", use)
    with pytest.raises(BadRequestError, match="over 4096 items"):
        ChatTemplate(source.replace("GROWTH", growth)).render(MESSAGES)


@pytest.mark.parametrize(
    "changes",
    [
        "{% set _ = a.append(a) %}",
        "{% set b = [a] * 999 %}{% set c = [] %}{% set _ = a.append([c] * 999) %}",
        "{% set b = [a, a] %}{% for i in range(70) %}{% set _ = a.append(b) %}{% endfor %}",
        "{% set b = {} %}{% set _ = b.update(x=[a] * 99) %}{% set _ = a.append(['x'] * 999) %}",
    ],
)
def test_changed_lists_are_weighed_with_all_that_holds_them(
    changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberd.text.spending.MAX_ITEMS", 1 << 12)
    with pytest.raises(BadRequestError, match="over 4096 items"):
        ChatTemplate("{% set a = [] %}" + changes).render(MESSAGES)


def test_a_template_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberd.text.template.time_limit", lambda: bounds.time_limit(0.2))
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(BadRequestError, match="longer than"):
        ChatTemplate(loops).render(MESSAGES)


def test_a_template_that_does_not_end_for_what_it_is_probed_with_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("emberd.text.template.time_limit", lambda: bounds.time_limit(0.2))
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    source = "{# type #}{% if messages[0].content != 'hi' %}" + loops + "{% endif %}"
    with pytest.raises(BadRequestError, match="longer than"):
        ChatTemplate(source).render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no' * 999999) }}",
        "{{ messages['x' * 999999].y }}",
        "{% if " + "x" * 9999,
    ],
)
def test_what_a_template_says_is_told_in_part(source: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        ChatTemplate(source).render(MESSAGES)
    assert len(str(refused.value)) < 3000


def test_lists_that_grow_item_by_item_are_not_gone_through_each_time() -> None:
    grows = "{% for m in messages %}{% set n.x = n.x + [m] %}{% endfor %}{{ n.x|length }}"
    messages = [{"role": "user", "content": f"{i}", "parts": [[i], [i]]} for i in range(10_000)]
    rendered = ChatTemplate("{% set n = namespace(x=[]) %}" + grows).render(messages)
    assert rendered == "10000"  # going through them all takes minutes, and the time is up


def test_the_forms_of_a_conversation_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template may take its time and then refuse the first form, and the next."""
    monkeypatch.setattr("emberd.text.template.time_limit", lambda: bounds.time_limit(0.5))
    tried = []
    clock = lambda: tried.append(time.sleep(0.2)) or datetime(2026, 1, 1)  # noqa: E731
    source = "{{ strftime_now('%Y') }}{{ messages[0].content.nothing.more }}"
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": None},
    ]
    with pytest.raises(BadRequestError, match="longer than"):
        ChatTemplate(source, clock=clock).render(messages)
    assert len(tried) < 4


def test_what_templates_do_still_works() -> None:
    source = (
        "{{ 'a' ~ 1 ~ none }}|{{ 'ab' * 2 }}|{{ 7 % 3 }}|{{ '%s-%d' % ('a', 3) }}|{{ 'x'|center(3) }}|"
        "{{ messages|map(attribute='content')|join(', ') }}|{{ 'a' + 'b' }}|{{ [1] + [2] }}|"
        "{{ '{}'.format(1) }}|{{ messages[0]|tojson(indent=2)|length }}|{{ '{:,}'.format(1234567) }}|"
        "{{ '100% **x** {} {{100000}}'.format(1) }}|{{ '%s of 100000'|format(1) }}|{{ 'abc'[::-1] }}|"
        "{{ [[1], [2]]|sum(start=[]) }}|{{ 'a b'|title }}|{% for a, b in {'k': 1}.items() %}{{ a, b }}{% endfor %}"
        "{{ y|default(1000000) }}{{ {}.get('y', 1000000) }}{{ 1000000|replace('0', '') }}"
        "{% set l = [] %}{% set _ = l.append([1]) %}{% set _ = l.append({}) %}{{ l }}|{{ 'a,b'.rsplit(',') }}"
    )
    assert ChatTemplate(source).render(MESSAGES) == (
        "a1None|abab|1|a-3| x |hi|ab|[1, 2]|1|39|1,234,567|100% **x** 1 {100000}|1 of 100000|cba|[1, 2]|A B|('k', 1)"
        "100000010000001"
        "[[1], {}]|['a', 'b']"
    )


def test_text_that_fits_and_is_more_than_a_template_may_make_is_told_of_the_template() -> None:
    name = "a" * 4096
    tokenizer = Tokenizer.from_metadata(byte_level(user_defined=[name]))
    template = ChatTemplate("{{ messages[0].content }}", tokenizer)
    num_tokens = 1 + MAX_TEXT // len(name)
    messages = [{"role": "user", "content": name * num_tokens}]
    for context_length in (None, 2 * num_tokens):
        with pytest.raises(BadRequestError, match=f"over {MAX_TEXT} characters") as caught:
            render_to_ids(template, tokenizer, messages, context_length)
        assert not isinstance(caught.value, ContextOverflowError)
