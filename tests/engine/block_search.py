"""Every order of events over a small world of blocks; scripts/check-blocks calls it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from block_world import Event, World


def explore(make: Callable[[], World], most_events: int) -> tuple[int, int, int]:
    """Every state that at most so many events lead to: states, transitions, and the events of the last.

    An AssertionError tells the events that led to it.
    """
    seen = {repr(make().state())}
    edge: list[tuple[Event, ...]] = [()]
    num_transitions = 0
    for length in range(1, most_events + 1):
        found: list[tuple[Event, ...]] = []
        for path in edge:
            for event in list(_at(make, path).events()):
                world, events = _at(make, path), (*path, event)
                num_transitions += 1
                try:
                    world.do(event)
                    world.check()
                    state = repr(world.state())
                    if state in seen:
                        continue
                    world.finish()
                except AssertionError as error:
                    raise AssertionError(f"{error}, after {events}") from error
                seen.add(state)
                found.append(events)
        edge = found
        if not edge:
            return len(seen), num_transitions, length
    return len(seen), num_transitions, most_events


def _at(make: Callable[[], World], path: Sequence[Event]) -> World:
    world = make()
    for event in path:
        world.do(event)
    return world


PROMPTS = ((0, 0, 0, 0, 0), (1, 1, 1), (0, 0, 1, 1, 1))
"""The third begins as the first does, the second is short."""


def main() -> None:
    parser = argparse.ArgumentParser(description="see scripts/check-blocks")
    for name, default in (("sequences", 3), ("blocks", 3), ("ram", 1), ("disk", 2), ("events", 11)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    prompts = PROMPTS[: given.sequences]
    started = time.perf_counter()
    states, transitions, events = explore(
        lambda: World(prompts, 6, given.blocks, given.ram, given.disk), given.events or 1 << 30
    )
    print(
        f"{states} states, {transitions} transitions, {events} events deep, all as they should be "
        f"({time.perf_counter() - started:.0f} s)"
    )


if __name__ == "__main__":
    main()
