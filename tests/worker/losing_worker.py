"""A real worker that loses its device when it is told to by SIGUSR1; started by test_device_loss.py.

Usage: losing_worker.py LEVEL:STYLE FD
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from emberd.worker import process

load = process.load_runner


def load_runner(*arguments: Any, **named: Any) -> Any:
    runner: Any = load(*arguments, **named)
    signal.signal(signal.SIGUSR1, lambda *_: runner._device.wgpu.destroy())
    return runner


process.load_runner = load_runner

if __name__ == "__main__":
    sys.exit(process.main())
