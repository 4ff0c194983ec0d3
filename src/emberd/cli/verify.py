"""Command verify: the device against the reference, kernel by kernel and as a whole, on a real model."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ..config import Config
from ..errors import ConfigError
from .local import model_path
from .output import JsonOption, print_json, print_table
from .settings import with_settings

_COLUMNS = ("KERNEL", "TYPE", "SHAPE", "ERROR", "TOLERANCE", "VERDICT")


@with_settings("device", "models_dir")
def verify(
    config: Config,
    model: Annotated[str, typer.Argument(help="A model's name, or the path of a GGUF file.")],
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Only kernels; the whole model is not run.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Compare every kernel that a model uses with the NumPy reference, on this machine's device.

    Kernels run on rows of the model's own weights; then the whole model prefills and decodes on the device and
    on the CPU. Exit code 1 when anything is off. Without a real GPU, auto takes a software adapter.
    """
    if config.device == "cpu":
        raise ConfigError(
            "the cpu device is the reference itself; verify needs --device gpu or an adapter's name"
        )
    from ..gguf.encoder import is_encoder
    from ..gguf.reader import GGUFFile
    from ..runtime.device import open_device
    from ..verify.encoder import check_encoder, check_encoder_kernels
    from ..verify.kernels import check_kernels
    from ..verify.model import check_model

    wanted = "gpu" if config.device == "auto" else config.device
    path = model_path(config, model)
    with GGUFFile(path) as file:
        encodes = is_encoder(file)
    device = open_device(wanted)
    try:
        name = device.name
        checks = list((check_encoder_kernels if encodes else check_kernels)(device, path))
    finally:
        device.close()
    if not kernels:
        checks += (check_encoder if encodes else check_model)(path, wanted)
    failed = [check for check in checks if not check.passed]
    if json:
        rows = [
            dataclasses.asdict(dataclasses.replace(check, features=())) | {"passed": check.passed}
            for check in checks
        ]
        print_json({"model": path.name, "device": name, "passed": not failed, "checks": rows})
    else:
        print(f"{path.name} on {name}")
        print_table(
            _COLUMNS,
            [
                (
                    check.kernel,
                    check.type,
                    check.shape,
                    f"{check.error:.2e}",
                    f"{check.tolerance:.2g}",
                    "pass" if check.passed else "FAIL",
                )
                for check in checks
            ],
        )
        for note in dict.fromkeys(check.note for check in failed if check.note):
            print(note)
        print(f"{len(checks) - len(failed)} passed, {len(failed)} failed")
    if failed:
        raise typer.Exit(1)
