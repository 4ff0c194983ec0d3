"""Every order of events of a small bound; scripts/check-blocks searches larger ones."""

from __future__ import annotations

import pytest
from block_search import PROMPTS, explore
from block_world import World


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sequences", "ram", "disk", "events", "states"),
    [
        (3, 2, 0, 8, 500),
        (2, 0, 2, 9, 500),
        (3, 1, 2, 7, 500),
    ],
)
def test_every_order_of_events_is_as_the_model_has_it(
    sequences: int, ram: int, disk: int, events: int, states: int
) -> None:
    found, _, _ = explore(lambda: World(PROMPTS[:sequences], 6, 3, ram, disk), events)
    assert found > states
