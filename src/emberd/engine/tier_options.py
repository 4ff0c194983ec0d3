"""The tiers that a worker's options ask for, and whose blocks those on disk are."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from emberd import __version__
from emberd.protocol import Runner, WorkerOptions

from .block_files import BlockFiles
from .disk_tier import DiskTier
from .rates import Rates
from .tiers import Tiers

log = logging.getLogger(__name__)


def tiers_for(
    runner: Runner, options: WorkerOptions, model_digest: Callable[[Path, Path], bytes]
) -> Tiers | None:
    """None where no memory is given for any, or the model's blocks are given up behind a window.

    `model_digest` gives the digest of a model's files, and keeps it in the cache folder.
    """
    if not options.kv_ram and not options.kv_disk:
        return None
    if runner.info().window:
        log.info("no KV tiers: every layer has a window, and blocks behind it are given up")
        return None
    rates = Rates(runner.block_size, runner.block_bytes)
    if not options.kv_disk or options.cache_dir is None:
        return Tiers(runner, rates, options.kv_ram)
    cache_dir, size = Path(options.cache_dir), runner.block_bytes
    try:
        digest = model_digest(Path(options.model_path), cache_dir)
        files = BlockFiles(cache_dir / "kv", _identity(digest, runner), size)
        disk = DiskTier(files, options.kv_disk, rates.fetch)
        rates.load(disk.rates_path)
    except OSError as error:
        log.warning("no KV blocks on disk: %s", error)
        disk = None
    return Tiers(runner, rates, options.kv_ram, disk)


def _identity(digest: bytes, runner: Runner) -> bytes:
    """All that a block's bytes depend on beside its tokens."""
    told = f"{__version__}, blocks of {runner.block_size} tokens, {runner.kv_layout}"
    return hashlib.blake2b(digest + told.encode(), digest_size=32).digest()
