"""What a sequence whose output is not finite has computed is used by nobody else.

A value that is not a number in a key or value spoils every token that has it in its context, also those before it in
the step that wrote it: attention multiplies it by 0. So where a prompt gives no finite output, any of its blocks may
be spoiled, be they its own or found. Found again, they would fail every request that begins so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .blocks import HOLE, BlockManager
from .prefix import Key
from .sequence import Sequence
from .tiers import Tiers


def distrust(
    sequence: Sequence, running: Iterable[Sequence], blocks: BlockManager, tiers: Tiers | None
) -> None:
    """Forget the blocks of `sequence`, which is about to end, and all behind them, in the pool and below.

    Those behind which a token was sampled are sound. So another running one that holds some lets them be found again
    if it has a token, and takes no part in the prefix cache any more if it has none yet.
    """
    if sequence.keys is None:
        return
    size = blocks.block_size
    first = (len(sequence.token_ids) - 1) // size if _has_token(sequence) else 0
    keys = sequence.keys.first(len(sequence.token_ids) // size)[first:]
    sequence.keys = None
    parents = blocks.prefixes.parents()
    if tiers is not None:
        parents |= tiers.parents()
    gone = _with_all_behind(keys, parents)
    blocks.unpublish(gone)
    if tiers is not None:
        tiers.drop(gone)
    for other in running:
        _stand_apart(other, gone, size)


def _has_token(sequence: Sequence) -> bool:
    """Whether a token was sampled behind the blocks it has now: not only before it was preempted."""
    return len(sequence.token_ids) > sequence.num_start_tokens


def _with_all_behind(keys: list[Key], parents: dict[Key, Key | None]) -> set[Key]:
    followers: defaultdict[Key, list[Key]] = defaultdict(list)
    for key, parent in parents.items():
        if parent is not None:
            followers[parent].append(key)
    found, left = set(keys), list(keys)
    while left:
        new = [key for key in followers[left.pop()] if key not in found]
        found.update(new)
        left += new
    return found


def _stand_apart(other: Sequence, gone: set[Key], block_size: int) -> None:
    if other.keys is None:
        return
    num_shared = max(other.num_published_blocks, other.num_reused_tokens // block_size)
    shared = other.keys.first(num_shared)
    place = next((place for place, key in enumerate(shared) if key in gone), None)
    if place is None:
        return
    if not _has_token(other):
        other.keys = None
        return
    while place < other.num_published_blocks and other.block_table[place] == HOLE:
        place += 1
    other.num_published_blocks = min(other.num_published_blocks, place)
