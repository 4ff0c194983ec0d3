"""Commands that change which models there are: pull, create, cp, rm.

They ask the running daemon, and work on the models folder themselves where none runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import Config
from ..errors import ConfigError
from .client import Daemon
from .local import local_store
from .output import console
from .settings import with_settings

if TYPE_CHECKING:
    from ..models.modelfile import Modelfile

Name = Annotated[str, typer.Argument(help="A model's name.")]
_MAX_MODELFILE = 1 << 22  # bytes; licenses are long


@with_settings("host", "port", "socket", "models_dir", "places", "registries")
def pull(
    config: Config,
    model: Annotated[
        str,
        typer.Argument(
            help="hf.co/OWNER/REPO[:QUANT], OWNER/REPO[:QUANT], NAME[:TAG] or HOST/NAMESPACE/NAME[:TAG]."
        ),
    ],
    url: Annotated[
        str | None, typer.Option("--url", help="Fetch the GGUF file from here, and call it MODEL.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Allow plain HTTP and certificates that nobody vouches for."
        ),
    ] = False,
) -> None:
    """Pull a model from the Hugging Face hub, a registry, or a URL.

    What was cut goes on where it stopped when it is pulled again.
    """
    from ..models.pull import pull as pull_here
    from ..models.pull import pull_url

    daemon = Daemon(config)
    with closing(daemon):
        if url is not None:
            _follow(pull_url(local_store(config), model, url, insecure))
        elif daemon.answers():
            _follow(daemon.stream("/api/pull", {"model": model, "insecure": insecure}))
        else:
            _follow(pull_here(local_store(config), model, config.registries, insecure))


@with_settings("host", "port", "socket", "models_dir", "places")
def create(
    config: Config,
    model: Annotated[str, typer.Argument(help="What the new model is called.")],
    file: Annotated[
        Path, typer.Option("-f", "--file", help="The Modelfile.", show_default=True)
    ] = Path("Modelfile"),
) -> None:
    """Make a model of another, or of a GGUF file, as a Modelfile says: FROM, PARAMETER, TEMPLATE (Jinja), SYSTEM,
    MESSAGE, LICENSE.

    A file that FROM names is not copied; it must stay where it is.
    """
    from ..models.create import create_from_file, create_from_model
    from ..models.modelfile import parse_modelfile

    read = parse_modelfile(_text_of(file))
    weights = file.parent / Path(read.base).expanduser()
    if read.base.startswith(("/", ".", "~")) and not weights.is_file():
        raise ConfigError(f"{file}: FROM {read.base}: no such file")
    daemon = Daemon(config)
    with closing(daemon):
        if weights.is_file():
            create_from_file(local_store(config), model, weights, read.recipe)
        elif daemon.answers():
            for _ in daemon.stream("/api/create", _create_body(model, read)):
                pass
        else:
            create_from_model(local_store(config), model, read.base, read.recipe)
    if read.ignored:
        print(f"without effect: PARAMETER {', '.join(read.ignored)}")
    print(f"{model} is created")


def _text_of(modelfile: Path) -> str:
    """Not more than a Modelfile holds: somebody may name the model itself. Raises ConfigError."""
    try:
        with modelfile.open("rb") as file:
            data = file.read(_MAX_MODELFILE + 1)
    except OSError as error:
        raise ConfigError(f"{modelfile}: cannot be read: {error.strerror}") from None
    if data.startswith(b"GGUF"):
        raise ConfigError(f"{modelfile}: is a model; write a Modelfile with FROM {modelfile}")
    if len(data) > _MAX_MODELFILE:
        raise ConfigError(f"{modelfile}: is no Modelfile: it has over {_MAX_MODELFILE} bytes")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{modelfile}: is no Modelfile: it is not UTF-8") from None


@with_settings("host", "port", "socket", "models_dir", "places")
def cp(
    config: Config,
    source: Name,
    destination: Annotated[str, typer.Argument(help="The second name.")],
) -> None:
    """Give a model a second name. Its file is not copied."""
    from ..models.create import copy_model

    daemon = Daemon(config)
    with closing(daemon):
        if daemon.answers():
            daemon.post("/api/copy", {"source": source, "destination": destination})
        else:
            copy_model(local_store(config), source, destination)
    print(f"{source} is also called {destination}")


@with_settings("host", "port", "socket", "models_dir", "places")
def rm(config: Config, model: Name) -> None:
    """Remove a model that was pulled, created or copied. Files of other programs and your own stay."""
    daemon = Daemon(config)
    with closing(daemon):
        if daemon.answers():
            daemon.delete("/api/delete", {"model": model})
        else:
            local_store(config).delete(model)
    print(f"{model} is removed")


def _create_body(model: str, read: Modelfile) -> dict[str, Any]:
    recipe = read.recipe
    return {
        "model": model,
        "from": read.base,
        "parameters": dict(recipe.parameters),
        "messages": [{"role": role, "content": text} for role, text in recipe.messages],
        "template": recipe.template or None,
        "system": recipe.system or None,
        "license": list(recipe.license) or None,
    }


def _follow(lines: Iterator[dict[str, Any]]) -> None:
    """Show the progress of a pull: bars on a terminal, else a line for each new status."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    bars: dict[str, Any] = {}
    said: set[str] = set()
    with Progress(*columns, console=console(), disable=not sys.stdout.isatty()) as progress:
        for line in lines:
            status = str(line.get("status", ""))
            if status not in said:
                said.add(status)
                if not progress.disable and "total" in line:
                    bars[status] = progress.add_task(status, total=line["total"])
                else:
                    progress.console.print(status)
            if status in bars:
                progress.update(bars[status], completed=line.get("completed", 0))
