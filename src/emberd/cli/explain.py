"""Command explain: why a request's prompt was, or was not, in the prefix cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..config import Config
from .cancel import RequestArgument, request_path
from .client import running_daemon
from .output import JsonOption, console, print_json
from .settings import with_settings

Json = dict[str, Any]


@with_settings("host", "port", "socket")
def explain(config: Config, id: RequestArgument, json: JsonOption = False) -> None:
    """Show what a request's prompt took from the prefix cache, and the first token at which it parts from the
    nearest prompt or reply there. Works for a while after its end too."""
    with running_daemon(config) as daemon:
        told = daemon.get(request_path(id))
    if json:
        print_json(told)
        return
    for line in lines(told):
        console().print(line, soft_wrap=True)


def lines(told: Json) -> Iterator[str]:
    """What `GET /api/requests/{id}` tells, in words. Texts are quoted, so that no prompt writes to a terminal."""
    ends = f" ({', '.join(told['ends'])})" if told.get("ends") else ""
    yield f"{told['id']}  {told['path']}  {told['model']}  {told['state']}{ends}"
    if not told["prompts"]:
        yield "no prompt of it was run"
    for prompt in told["prompts"]:
        yield from _of_prompt(prompt, len(told["prompts"]) > 1)


def _of_prompt(prompt: Json, one_of_many: bool) -> Iterator[str]:
    size, cached = prompt["prompt_tokens"], prompt["cached_tokens"]
    which = f"prompt {prompt['sequence']}" if one_of_many else "prompt"
    if prompt["outcome"] == "pending":
        yield f"{which}: {size:,} tokens; it has no first token"
        return
    yield f"{which}: {size:,} tokens, {cached:,} from the cache ({cached / size:.0%}), {size - cached:,} computed"
    if gone := prompt["gone_tokens"]:
        yield f"  {gone:,} more had been kept, and were gone or slower to fetch than to compute"
    nearest, difference = prompt["nearest"], prompt["difference"]
    if nearest is None:
        yield f"  {_WITHOUT_NEAREST[prompt['outcome']]}"
        return
    other = nearest["request"] or "an earlier request"
    at = nearest["tokens"]
    if prompt["outcome"] == "known":
        yield f"  {other} begins with the whole of it: full blocks are kept, and the last token is always run"
    elif difference is None:
        yield f"  goes along with {other} for {at:,} tokens, as far as that is known"
    else:
        yield f"  parts from {other} at token {at:,} of {size:,}, behind {_quoted(difference['before'])}:"
        yield f"    here   {_token(difference['token'])} then {_quoted(difference['after'])}"
        yield f"    there  {_token(difference['nearest_token'])} then {_quoted(difference['nearest_after'])}"


_WITHOUT_NEAREST = {
    "off": "takes no part in the prefix cache: cache_prompt is false, or log-probabilities of it were asked for",
    "new": "no prompt that is remembered begins with its first token",
    "withheld": "where it parts from a request of another key, or from one that is no longer kept, is told to "
    "keys with the scope manage",
}


def _token(token: Json) -> str:
    return f"{_quoted(token['text'])} (token {token['id']})"


def _quoted(text: str | None) -> str:
    return "?" if text is None else ascii(text) if not text.isprintable() else repr(text)
