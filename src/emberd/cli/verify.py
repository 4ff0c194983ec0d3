"""Command verify: the device against the reference, kernel by kernel and as a whole, on a real model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Optional

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
    kl: Annotated[
        bool,
        typer.Option("--kl", help="Compare over a text: divergence, likeliest tokens, perplexity."),
    ] = False,
    against: Annotated[
        Optional[str],  # noqa: UP045 - typer before 0.16 on Python 3.10
        typer.Option(
            "--against",
            metavar="MODEL",
            help="With --kl: another quantization of it, on the same device; else it itself in NumPy.",
        ),
    ] = None,
    text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--text", metavar="FILE", help="With --kl: the text; else a short one of emberd's own."
        ),
    ] = None,
    window: Annotated[
        int,
        typer.Option(
            "--window", min=2, help="With --kl: tokens of the text that are one sequence."
        ),
    ] = 512,
    json: JsonOption = False,
) -> None:
    """Compare every kernel that a model uses with the NumPy reference, on this machine's device.

    Kernels run on rows of the model's own weights; then the whole model prefills and decodes on the device and
    on the CPU. Exit code 1 when anything is off. Without a real GPU, auto takes a software adapter.

    With --kl (or --against) no kernel is checked: how far the model is from another over a text is measured, and
    nothing is judged.
    """
    if kl or against is not None:
        _compare_over_text(config, model, against, text, window, json)
        return
    if text is not None:
        raise ConfigError("--text is the text of --kl or --against; give one of them too")
    if config.device == "cpu":
        raise ConfigError(
            "the cpu device is the reference itself; verify needs --device gpu or an adapter's name"
        )
    from ..gguf.encoder import has_bert_block, is_encoder
    from ..gguf.reader import GGUFFile
    from ..runtime.device import open_device
    from ..verify.encoder import check_encoder, check_encoder_kernels
    from ..verify.kernels import check_kernels
    from ..verify.model import check_model

    wanted = "gpu" if config.device == "auto" else config.device
    path = model_path(config, model)
    with GGUFFile(path) as file:
        encodes, bert = is_encoder(file), has_bert_block(file)
    device = open_device(wanted)
    try:
        name = device.name
        checks = list((check_encoder_kernels if bert else check_kernels)(device, path))
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


def _compare_over_text(
    config: Config, model: str, against: str | None, text: Path | None, window: int, json: bool
) -> None:
    from ..runtime.device import choose_adapter
    from ..verify.quality import compare_over_text
    from ..verify.sample_text import TEXT

    path = model_path(config, model)
    reference = None if against is None else model_path(config, against)
    device = config.device
    if reference is None and device in ("cpu", "auto"):
        if device == "cpu":
            raise ConfigError("the cpu device is the reference itself; give --against or a GPU")
        device = "gpu"
    if device == "auto":  # NumPy is faster than a software adapter
        device = "cpu" if choose_adapter("auto")[0] is None else "gpu"
    try:
        content = TEXT if text is None else text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {text}: {error}") from error
    found = compare_over_text(path, reference, device, content, window)
    name = f"{path.name} in NumPy" if reference is None else reference.name
    if json:
        numbers = dataclasses.asdict(found)
        print_json({"model": path.name, "reference": name, "device": device, **numbers})
        return
    print(f"{path.name} on {device} against {name}, {found.num_tokens} tokens")
    print(f"KL divergence   mean {found.mean_kl:.3g}, largest {found.max_kl:.3g} nats a token")
    print(f"likeliest token the same in {100 * found.top1:.2f} %")
    print(
        f"perplexity      {found.perplexity:.4f}, of the reference {found.reference_perplexity:.4f}"
    )
