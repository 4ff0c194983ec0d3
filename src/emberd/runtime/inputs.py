"""What changes from step to step, packed into one GPU buffer that one write fills.

Plans are recorded once, so everything a step decides (tokens, positions, slots, who samples) reaches
the kernels through these arrays; see `Batch` for their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol import Batch
from .device import Device, Tensor

I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class InputSizes:
    """How many of each a plan's inputs hold."""

    tokens: int
    rows: int  # rows of the block table that attention may read
    sampled: int  # rows that may sample
    tiles: int  # prefill tiles


class StepInputs:
    """The arrays of one plan, as tensors for its kernels and as host arrays to fill."""

    def __init__(self, device: Device, buffer: Any, sizes: InputSizes) -> None:
        align = max(16, device.limits["min-storage-buffer-offset-alignment"]) // 4
        lengths = {
            "num_tokens": 1,
            "num_decode_rows": 1,
            "num_sampled": 1,
            "num_tiles": 1,
            "token_ids": sizes.tokens,
            "positions": sizes.tokens,
            "slots": sizes.tokens,
            "sequence_index": sizes.rows,
            "context_lens": sizes.rows,
            "sampled_tokens": sizes.sampled,
            "sampled_sequences": sizes.sampled,
            "sampled_positions": sizes.sampled,
            "tiles": 4 * sizes.tiles,
        }
        offset = 0
        places = {}
        for name, length in lengths.items():
            places[name] = (offset, length)
            offset += -(-max(4, length) // align) * align
        self._host: I32 = np.zeros(offset, np.int32)
        self._views = {name: self._host[at : at + n] for name, (at, n) in places.items()}
        self.tensor = Tensor(buffer, (offset,), "i32")
        self._tensors = {
            name: Tensor(buffer, (max(1, n),), "u32" if name.startswith("num_") else "i32", 4 * at)
            for name, (at, n) in places.items()
        }
        at, _ = places["tiles"]
        self._tensors["tiles"] = Tensor(buffer, (max(1, sizes.tiles), 4), "i32", 4 * at)

    @staticmethod
    def words_needed(device: Device, sizes: InputSizes) -> int:
        """An upper bound of the i32 words that the arrays take."""
        align = max(16, device.limits["min-storage-buffer-offset-alignment"]) // 4
        return 3 * sizes.tokens + 2 * sizes.rows + 3 * sizes.sampled + 4 * sizes.tiles + 13 * align

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def fill_texts(self, token_ids: I32, query_start: I32, tile_tokens: int) -> I32:
        """The arrays of whole texts in a cache that holds nothing else: token t is in slot t, blocks are of one
        position, and a text is the row of its first token, in a block table (tokens, 1) that counts up."""
        view, tokens = self._views, len(token_ids)
        lengths = np.diff(query_start)
        starts = query_start[:-1]
        view["num_tokens"][0] = tokens
        view["num_decode_rows"][0] = 0
        view["token_ids"][:tokens] = token_ids
        view["positions"][:tokens] = np.arange(tokens) - np.repeat(starts, lengths)
        view["slots"][:tokens] = np.arange(tokens)
        view["slots"][tokens:] = -1
        view["context_lens"][starts] = lengths
        tiles = [
            (start, first, min(tile_tokens, end - first), first - start)
            for start, end in pairwise(query_start.tolist())
            for first in range(start, end, tile_tokens)
        ]
        view["num_tiles"][0] = len(tiles)
        flat = np.asarray(tiles, np.int32).reshape(-1)
        view["tiles"][: len(flat)] = flat
        return self._host

    def fill(self, batch: Batch, places: I32, place_rows: I32, tile_tokens: int) -> I32:
        """The step's arrays, as words for `tensor`; `places` and their rows as of `Batch.sampled_places`."""
        view = self._views
        tokens, rows = batch.num_tokens, batch.num_rows
        view["num_tokens"][0] = tokens
        view["num_decode_rows"][0] = batch.num_decode_rows
        num_sampled = len(places)
        view["num_sampled"][0] = num_sampled
        view["token_ids"][:tokens] = batch.token_ids
        view["positions"][:tokens] = batch.positions
        view["slots"][:tokens] = batch.slot_mapping
        view["slots"][tokens:] = -1
        view["sequence_index"][:rows] = batch.sequence_index
        view["context_lens"][:rows] = batch.context_lens
        view["sampled_tokens"][:num_sampled] = places
        view["sampled_sequences"][:num_sampled] = batch.sequence_index[place_rows]
        view["sampled_sequences"][num_sampled:] = -1
        view["sampled_positions"][:num_sampled] = batch.positions[places] + 1
        tiles = _prefill_tiles(batch, tile_tokens) if len(view["tiles"]) else []
        view["num_tiles"][0] = len(tiles)
        if tiles:
            flat = np.asarray(tiles, np.int32).reshape(-1)
            view["tiles"][: len(flat)] = flat
        return self._host


def _prefill_tiles(batch: Batch, tile_tokens: int) -> list[tuple[int, int, int, int]]:
    """(row, first token, number of tokens, position of the first) of every prefill tile."""
    tiles = []
    for row in range(batch.num_decode_rows, batch.num_rows):
        start, end = int(batch.query_start[row]), int(batch.query_start[row + 1])
        for first in range(start, end, tile_tokens):
            count = min(tile_tokens, end - first)
            tiles.append((row, first, count, int(batch.positions[first])))
    return tiles


class BlockTables:
    """Block tables on the GPU, by batch row; only rows that changed are written."""

    def __init__(self, device: Device, max_rows: int, max_blocks: int) -> None:
        self._device = device
        self._host: I32 = np.full((max_rows, max_blocks), -1, np.int32)
        self.tensor = device.empty((max_rows, max_blocks), "i32", "block tables")

    def changed_rows(self, batch: Batch) -> list[int]:
        """Batch rows whose table is not the one on the GPU."""
        width = batch.block_tables.shape[1]
        here = self._host[: batch.num_rows, :width]
        if np.array_equal(here, batch.block_tables):
            return []
        return np.flatnonzero((here != batch.block_tables).any(1)).tolist()

    def write(self, batch: Batch, rows: list[int]) -> None:
        """Bring those rows to the GPU."""
        width = batch.block_tables.shape[1]
        for row in rows:
            self._host[row, :width] = batch.block_tables[row]
            offset = 4 * row * self._host.shape[1]
            self._device.write(self.tensor, self._host[row, :width], offset)
