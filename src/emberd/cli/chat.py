"""Command run: talk to a model in the terminal, over HTTP like any client.

Uses the daemon that runs; where none does, starts a private one that ends with the session.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import Config
from ..errors import BadRequestError, EmberdError
from ..models.facts import content_digest
from ..models.store import file_name
from .client import Daemon, private_daemon
from .local import given_file
from .output import JsonOption, console, print_json
from .settings import with_settings

_HELP = """\
/clear   forget the conversation      /bye or Ctrl-D   leave
\"\"\"      begin and end a text of several lines       Ctrl-C   stop a reply"""

_COMMAND = re.compile(r"/[a-z?]+(?=\s|$)")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What would make a terminal do things; models and their prompts are others' texts."""


@with_settings("host", "port", "socket", "device", "models_dir")
def run(
    config: Config,
    model: Annotated[str, typer.Argument(help="A model's name, or the path of a GGUF file.")],
    prompt: Annotated[
        str | None, typer.Argument(help="One question; without it, a chat (or standard input).")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the random choices repeat.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest reply, in tokens.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without a chat template.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print speeds after replies.")] = False,
    json: JsonOption = False,
) -> None:
    """Chat with a model in the terminal, or answer one prompt.

    Uses the running daemon. Where none runs, or it does not have the file of that path, starts one for this session
    only.
    """
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise BadRequestError("standard input is empty; give a prompt")
    if json and prompt is None:
        raise BadRequestError("--json answers one prompt; give one")
    if temperature is not None and not math.isfinite(temperature):
        raise BadRequestError(f"--temperature: {temperature} is not a temperature")
    options = {"temperature": temperature, "seed": seed, "num_predict": max_tokens}
    given = {key: value for key, value in options.items() if value is not None}
    with _daemon(config, model) as (daemon, name):
        session = Session(daemon, name, given, system, raw)
        if prompt is None:
            _chat(session, verbose)
        elif json:
            text = "".join(session.reply(prompt))
            print_json({"model": name, "text": text} | session.figures())
        else:
            _print_reply(session, prompt, verbose)


class Session:
    """A conversation: what was said so far, and the figures of the last reply."""

    def __init__(
        self, daemon: Daemon, model: str, options: dict[str, Any], system: str | None, raw: bool
    ) -> None:
        self._daemon = daemon
        self._model = model
        self._options = options
        self._raw = raw
        self._system = [{"role": "system", "content": system}] if system else []
        self._last: dict[str, Any] = {}
        self.clear()

    def clear(self) -> None:
        self._messages: list[dict[str, str]] = list(self._system)

    def reply(self, text: str) -> Iterator[str]:
        """Pieces of the reply as they come. What came before an interruption stays in the conversation."""
        body: dict[str, Any] = {"model": self._model, "options": self._options, "stream": True}
        if self._raw:
            path, body = "/api/generate", body | {"prompt": text, "raw": True}
        else:
            path = "/api/chat"
            question = {"role": "user", "content": text}
            body = body | {"messages": [*self._messages, question]}
        pieces: list[str] = []
        lines = self._daemon.stream(path, body)
        try:
            for line in lines:
                piece = line["response"] if self._raw else line["message"]["content"]
                pieces.append(piece)
                self._last = line
                if piece:
                    yield piece
        finally:
            lines.close()  # type: ignore[attr-defined]
            if pieces and not self._raw:
                answer = {"role": "assistant", "content": "".join(pieces)}
                self._messages += [question, answer]

    def figures(self) -> dict[str, Any]:
        """Counts, tok/s and the reason of the end of the last reply; rates are None where unknown."""
        prompt_tokens = self._last.get("prompt_eval_count", 0)
        completion_tokens = self._last.get("eval_count", 0)
        return {
            "done_reason": self._last.get("done_reason"),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "prefill_tok_s": _rate(prompt_tokens, self._last.get("prompt_eval_duration")),
            "decode_tok_s": _rate(completion_tokens, self._last.get("eval_duration")),
        }


def _rate(count: int, nanoseconds: int | None) -> float | None:
    return round(count / (nanoseconds / 1e9), 1) if nanoseconds else None


@contextmanager
def _daemon(config: Config, model: str) -> Iterator[tuple[Daemon, str]]:
    """A daemon, and the name under which it knows the model."""
    path, daemon = given_file(model), Daemon(config)
    name = model if path is None else file_name(path)
    try:
        if daemon.answers() and (path is None or _has_file(daemon, name, path)):
            yield daemon, name
            return
    finally:
        daemon.close()
    with ExitStack() as stack:
        with console().status(f"loading {model}") if sys.stdout.isatty() else ExitStack():
            private = stack.enter_context(private_daemon(config, model))
        yield private, name


def _has_file(daemon: Daemon, name: str, path: Path) -> bool:
    """Whether what the daemon calls so is this file: another one may have the name."""
    wanted = name, content_digest(path)
    return any(wanted == (tag["name"], tag["digest"]) for tag in daemon.get("/api/tags")["models"])


def _print_reply(session: Session, prompt: str, verbose: bool) -> None:
    terminal = sys.stdout.isatty()
    for piece in session.reply(prompt):
        print(_CONTROLS.sub("\ufffd", piece) if terminal else piece, end="", flush=True)
    print()
    if verbose:
        figures = session.figures()
        print(
            f"[{figures['prompt_tokens']} prompt tokens, {figures['completion_tokens']} completion "
            f"tokens, decode {figures['decode_tok_s']} tok/s, {figures['done_reason']}]",
            file=sys.stderr,
        )


def _chat(session: Session, verbose: bool) -> None:
    print("/? for help, /bye to leave")
    while True:
        try:
            text, is_line = _read_text()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        command = _COMMAND.match(text) if is_line else None
        if command and text == "/bye":
            return
        if command and text == "/clear":
            session.clear()
        elif command and text in ("/?", "/help"):
            print(_HELP)
        elif command:
            print(f'{command[0]} is no command; /? lists them, and """ begins a text of any kind')
        elif text:
            try:
                _print_reply(session, text, verbose)
            except KeyboardInterrupt:
                print()
            except EmberdError as error:
                print(f"error: {error.message}", file=sys.stderr)


def _read_text() -> tuple[str, bool]:
    """What was typed, and whether it is a line as it is, which may be a command."""
    try:
        import readline  # noqa: F401 - gives input() editing and history
    except ImportError:
        pass
    text = input(">>> ")
    if not text.startswith('"""'):
        return text.strip(), True
    lines = [text.removeprefix('"""')]
    while not lines[-1].endswith('"""'):
        lines.append(input("... "))
    return "\n".join(lines).removesuffix('"""').strip(), False
