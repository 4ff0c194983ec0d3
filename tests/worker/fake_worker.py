"""A worker process over the scripted runner; started by the worker tests in place of a real one.

Usage: fake_worker.py NAME=VALUE ... LEVEL:STYLE FD. `mode` is one of MODES, the rest go to ScriptedRunner.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from emberd.errors import DeviceError, ModelFileError
from emberd.protocol import Batch, Runner, WorkerOptions
from emberd.worker.process import Progress, main
from fakes import ScriptedRunner

MODES = ("serve", "slow", "bad-file", "no-device", "bug", "exit", "hang", "fail-late", "prepare")


class SlowRunner(ScriptedRunner):
    """Steps of 5 ms, so that streams last long enough to be cut."""

    def submit(self, batch: Batch) -> None:
        time.sleep(0.005)
        super().submit(batch)


class PreparingRunner(ScriptedRunner):
    """Has three things to prepare, none of them while it serves; its tokens tell how many are done."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**settings, next_token=lambda history, params: self.num_prepared)
        self.num_prepared = 0

    def prepare(self) -> bool:
        assert not self._in_flight, "prepared while a step runs"
        self.num_prepared += self.num_prepared < 3
        return self.num_prepared < 3


class FailingRunner(ScriptedRunner):
    """Loses its device at the fourth step, late enough that requests sent together are all there."""

    def submit(self, batch: Batch) -> None:
        time.sleep(0.1)
        if len(self.batches) == 3:
            raise DeviceError("the device was lost")
        super().submit(batch)


def make_runner(options: WorkerOptions, progress: Progress) -> Runner:
    arguments = dict(argument.split("=") for argument in sys.argv[1:-2])
    mode = arguments.pop("mode", "serve")
    assert mode in MODES
    settings = {name: int(value) for name, value in arguments.items()}
    progress(0.25)
    if mode == "bad-file":
        raise ModelFileError(f"{options.model_path} is damaged at byte 17")
    if mode == "no-device":
        raise DeviceError(f"no adapter's name contains '{options.device}'")
    if mode == "bug":
        raise ZeroDivisionError("a bug")
    if mode == "exit":
        os._exit(3)
    if mode == "hang":
        time.sleep(1000)
    progress(1.0)
    kinds = {"prepare": PreparingRunner, "slow": SlowRunner, "fail-late": FailingRunner}
    return kinds.get(mode, ScriptedRunner)(**settings)


if __name__ == "__main__":
    sys.exit(main(make_runner))
