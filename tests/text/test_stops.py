"""K04: stop strings over token borders, and nothing of them shown."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from emberd.text.stops import StopStrings

SCRIPT = ["A B", " C D", " E F", " G"]


def shown(stops: Iterable[str], pieces: Iterable[str]) -> tuple[str, str | None]:
    watcher = StopStrings(stops)
    text = ""
    for piece in pieces:
        delta, matched = watcher.push(piece)
        text += delta
        if matched is not None:
            return text, matched
    return text + watcher.finish(), None


@pytest.mark.parametrize(
    ("stop", "text", "matched"),
    [("D E", "A B C ", "D E"), ("D Z", "A B C D E F G", None), ("A B", "", "A B")],
)
def test_k04_the_script(stop: str, text: str, matched: str | None) -> None:
    assert shown([stop], SCRIPT) == (text, matched)


def test_k04_what_could_begin_a_stop_is_held_and_no_more() -> None:
    watcher = StopStrings(["D E"])
    assert watcher.push("A B") == ("A B", None)
    assert watcher.push(" C D") == (" C ", None)
    assert watcher.push("x") == ("Dx", None)
    assert watcher.push(" D ") == (" ", None)
    assert watcher.push("E F") == ("", "D E")
    assert watcher.push("more") == ("", "D E")
    assert watcher.finish() == ""


def test_held_text_is_shown_at_the_end() -> None:
    watcher = StopStrings(["abcd"])
    assert watcher.push("xabc") == ("x", None)
    assert watcher.finish() == "abc"


def test_the_stop_that_is_complete_first_ends_the_reply() -> None:
    assert shown(["bcd", "c"], ["abcd"]) == ("ab", "c")
    assert shown(["c", "bc"], ["abcd"]) == ("a", "bc")


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stops_everything_passes_at_once(stops: list[str]) -> None:
    watcher = StopStrings(stops)
    assert watcher.push("abc") == ("abc", None)


def test_the_cut_of_the_text_makes_no_difference(rng: np.random.Generator) -> None:
    for _ in range(300):
        stops = ["".join(rng.choice(list("ab"), size=rng.integers(1, 6))) for _ in range(3)]
        text = "".join(rng.choice(list("abc"), size=20))
        ends = [
            (end, -len(stop), stop)
            for end in range(len(text) + 1)
            for stop in stops
            if text[:end].endswith(stop)
        ]
        end, length, first = min(ends, default=(len(text), 0, None))
        cuts = sorted(rng.integers(0, len(text), size=rng.integers(0, 12)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert shown(stops, pieces) == shown(stops, [text]) == (text[: end + length], first)
