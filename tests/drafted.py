"""Rows that end in drafted tokens, driven without an engine: what any runner must answer to them."""

from __future__ import annotations

import numpy as np

from batches import Row, make_batch
from emberd.protocol import Runner, SamplingParams


def plainly(
    runner: Runner, prompt: list[int], params: SamplingParams, blocks: list[int], count: int
) -> list[int]:
    """`count` tokens sampled one a step, in place 0."""
    found: list[int] = []
    row = Row(0, prompt, 0, blocks, admit=params)
    while True:
        runner.submit(make_batch([row], runner.block_size))
        found.append(int(runner.collect().token_ids[0]))
        if len(found) == count:
            return found
        row = Row(0, found[-1:], len(prompt) + len(found) - 1, blocks)


def by_guesses(
    rng: np.random.Generator,
    runner: Runner,
    prompts: list[list[int]],
    params: list[SamplingParams],
    blocks: list[list[int]],
    truths: list[list[int]],
) -> list[list[int]]:
    """All together, each row with up to three guesses, which are the coming tokens or other ones. Checks that
    every token of a row is what it has to be while the guesses before it are right."""
    found: list[list[int]] = [[] for _ in prompts]
    rows = [Row(i, ids, 0, blocks[i], admit=params[i]) for i, ids in enumerate(prompts)]
    num_right = num_wrong = 0
    while rows:
        rows.sort(key=lambda row: len(row.token_ids) > 1)
        runner.submit(make_batch(rows, runner.block_size))
        output = runner.collect()
        behind = [] if output.behind_drafts is None else output.behind_drafts.tolist()
        assert len(behind) == sum(row.drafted for row in rows)
        for place, row in enumerate(rows):
            sampled = [int(output.token_ids[place]), *behind[: row.drafted]]
            del behind[: row.drafted]
            guesses = list(row.token_ids[len(row.token_ids) - row.drafted :])
            right = 0
            while right < len(guesses) and guesses[right] == sampled[right]:
                right += 1
            num_right += right
            num_wrong += len(guesses) - right
            found[row.index] += sampled[: right + 1]
        rows = []
        for index, known in enumerate(found):
            left = truths[index][len(known) :]
            if not left:
                continue
            guesses = left[: int(rng.integers(0, min(4, len(left))))]
            guesses = [token ^ int(rng.random() < 0.2) for token in guesses]
            start = len(prompts[index]) + len(known) - 1
            rows.append(
                Row(index, known[-1:] + guesses, start, blocks[index], drafted=len(guesses))
            )
    assert num_right and num_wrong, "guesses of both kinds were meant to come"
    return found
