"""KV blocks in files: what is kept, what goes, and that nothing is used that is not what it should be."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from tier_sites import IDENTITY, TierSite, a_request, again

from emberd.engine.block_files import BlockFiles
from emberd.engine.disk_tier import DiskTier
from emberd.engine.leaf_order import LeafOrder
from emberd.engine.ram_tier import RamTier
from emberd.engine.rates import Rate

BYTES = 640


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def block(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, BYTES).astype(np.uint8)


def open_files(folder: Path, identity: bytes = IDENTITY) -> BlockFiles:
    return BlockFiles(folder, identity, BYTES)


def open_tier(folder: Path, blocks: int, identity: bytes = IDENTITY) -> DiskTier:
    files = open_files(folder, identity)
    return DiskTier(files, blocks * files.file_bytes, Rate())


def settle(tier: DiskTier) -> dict[bytes, np.ndarray]:
    found: dict[bytes, np.ndarray] = {}
    while tier.busy:
        tier.wait(1.0)
        found |= tier.poll()
    return found


def test_a_block_is_read_as_it_was_written(tmp_path: Path, rng: np.random.Generator) -> None:
    data = {key(number): block(rng) for number in range(1, 6)}
    tier = open_tier(tmp_path, 10)
    for number, (name, bytes_) in enumerate(data.items()):
        assert tier.write(name, key(number) if number else None, bytes_) and name in tier
    tier.close()
    tier = open_tier(tmp_path, 10)
    assert tier.num_blocks == 5
    tier.fetch([key(3), key(5)])
    found = settle(tier)
    assert found.keys() == {key(3), key(5)}
    assert all(np.array_equal(found[name], data[name]) for name in found)
    assert tier.nbytes == sum(path.stat().st_size for path in tmp_path.rglob("*.kv"))
    tier.close()


def test_only_the_owner_may_look(tmp_path: Path, rng: np.random.Generator) -> None:
    open_files(tmp_path).write(key(1), None, block(rng))
    (file,) = tmp_path.rglob("*.kv")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "empty", "gone", "key", "identity"])
def test_what_is_not_as_it_should_be_is_never_used(
    tmp_path: Path, rng: np.random.Generator, damage: str
) -> None:
    files = open_files(tmp_path)
    files.write(key(1), None, block(rng))
    (file,) = tmp_path.rglob("*.kv")
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    elif damage == "cut":
        del content[int(rng.integers(1, len(content))) :]
    elif damage == "longer":
        content += b"\0"
    elif damage == "empty":
        content.clear()
    elif damage == "key":  # a whole file under another's name
        other = tmp_path / "other"
        BlockFiles(other, IDENTITY, BYTES).write(key(2), None, block(rng))
        content = bytearray(next(other.rglob("*.kv")).read_bytes())
    elif damage == "identity":
        other = tmp_path / "other"
        BlockFiles(other, bytes(32), BYTES).write(key(1), None, block(rng))
        content = bytearray(next(other.rglob("*.kv")).read_bytes())
    file.write_bytes(content)
    if damage == "gone":
        file.unlink()
    assert files.read(key(1), None) is None
    assert not file.exists()


def test_a_damaged_file_costs_no_more_than_its_time(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    first = a_request("first", rng, 61)
    site = TierSite(0, 100, tmp_path)
    site.run(first)
    site.engine.close()
    found = sorted(tmp_path.rglob("*.kv"))
    victim = found[int(rng.integers(len(found)))]
    content = bytearray(victim.read_bytes())
    content[int(rng.integers(len(content)))] ^= 0x40
    victim.write_bytes(content)
    site = TierSite(0, 100, tmp_path)
    (cached,) = site.run(again(first, "again"))
    assert cached < 60 and cached % 4 == 0
    site.engine.close()
    site = TierSite(0, 100, tmp_path)
    assert site.run(again(first, "again")) == [60], "it was written again"
    site.engine.close()


def test_files_cut_off_by_a_crash_are_removed_at_the_start(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    files = open_files(tmp_path)
    files.write(key(1), None, block(rng))
    cut = files.folder / f"{key(2).hex()}-{key(1).hex()}.kv"
    cut.write_bytes(bytes(100))
    old, new = files.folder / "a.1.part", files.folder / "b.2.part"
    for path in (old, new):
        path.write_bytes(bytes(10))
    os.utime(old, (0, 0))
    (files.folder / "notes.txt").write_text("not ours")
    tier = open_tier(tmp_path, 10)
    assert key(1) in tier and key(2) not in tier and tier.num_blocks == 1
    names = {path.name for path in files.folder.iterdir()}
    assert names == {f"{key(1).hex()}-{bytes(16).hex()}.kv", "b.2.part", "notes.txt"}
    tier.close()


def test_the_end_of_the_prefix_used_longest_ago_goes_first(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    tier = open_tier(tmp_path, 5)
    for name, parent in ((1, None), (2, 1), (3, 2), (11, None), (12, 11)):
        assert tier.write(key(name), None if parent is None else key(parent), block(rng))
    tier.fetch([key(1), key(2), key(3)])
    settle(tier)
    assert tier.write(key(21), None, block(rng))
    assert key(12) not in tier and key(11) in tier
    assert tier.write(key(22), key(21), block(rng))
    assert key(11) not in tier
    tier.close()
    assert len(list(tmp_path.rglob("*.kv"))) == 5


def test_a_prefix_longer_than_the_tier_keeps_its_beginning(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    first = a_request("first", rng, 61)
    site = TierSite(0, 9, tmp_path)
    site.run(first)
    site.engine.close()
    assert len(list(tmp_path.rglob("*.kv"))) == 9
    site = TierSite(0, 9, tmp_path)
    assert site.run(again(first, "again")) == [36]
    site.engine.close()


def test_files_of_other_models_count_and_go_first(tmp_path: Path, rng: np.random.Generator) -> None:
    other = open_files(tmp_path, bytes(32))
    for number in range(1, 5):
        other.write(key(number), None, block(rng))
        os.utime(next(other.folder.glob(f"{key(number).hex()}*")), (number, number))
    tier = open_tier(tmp_path, 4)
    for number in range(11, 14):
        assert tier.write(key(number), None, block(rng))
    tier.close()
    left = {path.name[:32] for path in tmp_path.rglob("*.kv")}
    assert left == {key(number).hex() for number in (4, 11, 12, 13)}


def test_a_smaller_bound_holds_from_the_start(tmp_path: Path, rng: np.random.Generator) -> None:
    tier = open_tier(tmp_path, 9)
    for number in range(1, 8):
        tier.write(key(number), key(number - 1) if number > 1 else None, block(rng))
    tier.close()
    tier = open_tier(tmp_path, 3)
    tier.close()
    assert {path.name[:32] for path in tmp_path.rglob("*.kv")} == {
        key(number).hex() for number in (1, 2, 3)
    }


def test_a_disk_that_fails_ends_the_writing_and_nothing_else(
    tmp_path: Path, rng: np.random.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    site = TierSite(0, 100, tmp_path)
    (folder,) = tmp_path.iterdir()
    folder.rmdir()
    first = a_request("first", rng, 61)
    assert site.run(first) == [0]
    assert site.run(again(first, "again")) == [60], "from the pool"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert site.tiers.counts.disk_blocks == 0
    site.engine.close()


def test_what_waits_to_be_written_is_bounded(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberd.engine.disk_tier._QUEUED_BYTES", 3 * BYTES)
    go = threading.Event()
    write = BlockFiles.write

    def slow(self: BlockFiles, *args: object) -> None:
        go.wait(10)
        write(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockFiles, "write", slow)
    tier = open_tier(tmp_path, 100)
    taken = [tier.write(key(number), None, block(rng)) for number in range(1, 9)]
    assert taken == [True] * 3 + [False] * 5
    go.set()
    settle(tier)
    assert tier.write(key(9), None, block(rng))
    tier.close()
    assert len(list(tmp_path.rglob("*.kv"))) == 4


def test_main_memory_holds_its_bound_by_leaf(rng: np.random.Generator) -> None:
    tier = RamTier(3 * BYTES)
    assert tier.put(key(3), key(2), block(rng)) == []
    assert tier.put(key(2), key(1), block(rng)) == []
    assert tier.put(key(1), None, block(rng)) == []
    (gone,) = tier.put(key(9), None, block(rng))
    assert gone[:2] == (key(3), key(2)) and tier.nbytes == 3 * BYTES
    tier.use(key(2))
    (gone,) = tier.put(key(8), None, block(rng))
    assert gone[0] == key(9)


def test_the_order_of_leaves_against_a_plain_one(rng: np.random.Generator) -> None:
    order, model = LeafOrder(), dict[bytes, tuple[bytes | None, int]]()
    for time in range(600):
        action = rng.integers(4)
        if action < 2:
            name = key(int(rng.integers(1, 60)))
            if name in model:
                order.use(name)
                model[name] = model[name][0], time
            else:
                number = int.from_bytes(name, "big")
                parent = key(number // 2) if number > 1 else None
                order.add(name, parent)
                model[name] = parent, time
        elif model and action == 2:
            name = list(model)[int(rng.integers(len(model)))]
            order.remove(name)
            del model[name]
        if model:
            parents = {parent for parent, _ in model.values()}
            leaves = [name for name in model if name not in parents]
            assert order.first() == min(leaves, key=lambda name: model[name][1])
        assert len(order) == len(model)
