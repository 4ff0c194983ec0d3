"""The typer app: which commands there are, and how a domain error ends the process.

An EmberdError is one line on stderr and exit code 1, never a traceback; so is output to a full disk. A reader
that went away ends the command without a word.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated

import typer

from .. import __version__
from ..errors import EmberdError
from .batch import batch
from .bench import bench
from .cancel import cancel
from .chat import run
from .devices import devices
from .explain import explain
from .fit import fit
from .library import cp, create, pull, rm
from .models import list_models, ps, show, stop
from .serve import serve
from .verify import verify

_WRITE_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT)

app = typer.Typer(
    name="emberd",
    help="A local inference daemon: GGUF models on any GPU through WebGPU, served as OpenAI, "
    "Ollama and Anthropic APIs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"emberd {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


# In click, a line with \b alone keeps the line breaks of the paragraph after it.
def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


app.command(
    epilog=_examples(
        "emberd serve",
        "emberd serve --model smollm2 --ctx 4096",
        "emberd serve --device cpu --port 8080 --model ./my-model.gguf",
    )
)(serve)
app.command(
    epilog=_examples(
        "emberd run smollm2",
        'emberd run smollm2 "Why is the sky blue?"',
        "emberd run smollm2 < question.txt",
    )
)(run)
app.command(
    epilog=_examples(
        "emberd pull hf.co/bartowski/SmolLM2-135M-Instruct-GGUF",
        "emberd pull bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0",
        "emberd pull qwen2.5:0.5b",
        "emberd pull mine --url https://example.com/my-model.gguf",
    )
)(pull)
app.command("list", epilog=_examples("emberd list", "emberd list --json"))(list_models)
app.command(epilog=_examples("emberd ps", "emberd ps --json"))(ps)
app.command(
    epilog=_examples(
        "emberd show smollm2",
        "emberd show ./my-model.gguf --json",
        "emberd show smollm2 --template",
        "emberd show mario --modelfile > Modelfile",
    )
)(show)
app.command(epilog=_examples("emberd stop smollm2"))(stop)
app.command(epilog=_examples("emberd batch", "emberd batch --once", "emberd batch --json"))(batch)
app.command(epilog=_examples("emberd cancel req_e7759df91516bd3694326405"))(cancel)
app.command(
    epilog=_examples(
        "emberd explain req_e7759df91516bd3694326405",
        "emberd explain chatcmpl-e7759df91516bd3694326405 --json",
    )
)(explain)
app.command(epilog=_examples("emberd create mario -f ./Modelfile"))(create)
app.command(epilog=_examples("emberd cp smollm2 my-model"))(cp)
app.command(epilog=_examples("emberd rm my-model"))(rm)
app.command(
    epilog=_examples(
        "emberd fit smollm2",
        "emberd fit ./my-model.gguf --ctx 32768 --device cpu",
        "emberd fit smollm2 --memory 8GiB --json",
    )
)(fit)
app.command(
    epilog=_examples("emberd devices", "emberd devices --device gpu", "emberd devices --json")
)(devices)
app.command(
    epilog=_examples("emberd verify smollm2", "emberd verify ./my-model.gguf --device llvmpipe")
)(verify)
app.command(
    epilog=_examples(
        "emberd bench smollm2",
        "emberd bench smollm2 --streams 1,8,32 --prompt-tokens 512 --new-tokens 128",
        "emberd bench ./my-model.gguf --device cpu --json",
    )
)(bench)


def main() -> None:
    if sys.stdout is None:  # closed by who called
        sys.stdout = open(os.devnull, "w")
    for stream in (sys.stdin, sys.stdout):  # what their encoding lacks is no reason to stop
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # at the interpreter's end it could no longer be told
    except EmberdError as error:
        print(f"error: {error.message}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in _WRITE_ERRORS:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where the rest goes
        if error.errno != errno.EPIPE:  # a reader that has enough is nobody's mistake
            print(f"error: cannot write: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None
