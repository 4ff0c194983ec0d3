"""Command flags made from Config: a command names the settings that it takes and gets one Config.

Names, help and defaults stand in config.py only.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, Optional

import typer

from ..config import Config, Setting, settings

Command = Callable[..., None]
_REPEATED = "models"  # `--model A --model B`; paths may hold commas, so this flag does not split


def flag_of(setting: Setting) -> str:
    """The flag under which commands take the setting."""
    return "--model" if setting.name == _REPEATED else setting.flag


def with_settings(*names: str) -> Callable[[Command], Command]:
    """Replace a command's first parameter, a Config, by one flag for each setting named (none: all)."""
    chosen = [setting for setting in settings() if not names or setting.name in names]
    assert not names or len(chosen) == len(names), names

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(**values: Any) -> None:
            given = {setting.name: values.pop(setting.name) for setting in chosen}
            if given.get(_REPEATED) is not None:
                given[_REPEATED] = tuple(given[_REPEATED]) or None
            command(Config.from_env(os.environ, **given), **values)

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]
        parameters += [_parameter(setting) for setting in chosen]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {item.name: item.annotation for item in parameters}
        return wrapped

    return decorate


def _parameter(setting: Setting) -> inspect.Parameter:
    flag = flag_of(setting)
    option = typer.Option(
        f"{flag}/--no-{flag.removeprefix('--')}" if setting.name == "verify" else flag,
        help=f"{setting.help} [{setting.env}; default: {setting.default}]",
        metavar="NAME|PATH" if setting.name == _REPEATED else None if setting.is_switch else "TEXT",
        show_default=False,
    )
    # typer before 0.16 does not read `X | None` made at run time on Python 3.10.
    kind: Any = Optional[bool] if setting.is_switch else Optional[str]  # noqa: UP045
    if setting.name == _REPEATED:
        kind = Optional[list[str]]  # noqa: UP045
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )
