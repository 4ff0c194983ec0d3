"""Full blocks of a sequence are let others find: whatever reads them is submitted after what writes them."""

from __future__ import annotations

from .blocks import BlockManager
from .sequence import Sequence


def publish(sequence: Sequence, blocks: BlockManager) -> list[int]:
    """Publish the blocks that submitted steps have filled since the last time; the places of those that nobody had."""
    if sequence.keys is None:
        return []
    num_written = min(sequence.num_computed_tokens, len(sequence.token_ids))
    num_full = num_written // blocks.block_size
    if num_full <= sequence.num_published_blocks:
        return []
    keys, new = sequence.keys.first(num_full), []
    for place in range(sequence.num_published_blocks, num_full):
        before = keys[place - 1] if place else None
        if blocks.publish(sequence.block_table, place, keys[place], before):
            sequence.num_told_blocks = min(sequence.num_told_blocks, place)
        else:
            new.append(place)
    sequence.num_published_blocks = num_full
    return new
