"""Which models are loaded and for how long: shared loads, keep-alive (K31, OL-06), death, closing."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path

import pytest

from emberd.config import Config
from emberd.errors import ModelFileError, ModelLoadError, ModelNotFoundError, OverloadedError
from emberd.models.recipe import Recipe
from site_fakes import Site, refused, run, write_model
from tiny_encoder import encoder_model
from tiny_gguf import random_model


@pytest.fixture
def site(tmp_path: Path) -> Site:
    write_model(tmp_path / "models" / "tiny.gguf")
    return Site(Config(models_dir=tmp_path / "models", cache_dir=tmp_path / "cache"))


def test_a_load_is_shared_by_all_who_wait(site: Site) -> None:
    async def work() -> None:
        models = await asyncio.gather(*(site.manager.acquire("tiny") for _ in range(5)))
        assert len(site.workers) == 1
        assert len({id(model) for model in models}) == 1
        assert models[0].active == 5
        assert models[0].context_length == 256
        await site.manager.close()
        assert not site.workers[0].alive

    run(work())


def test_who_gives_up_waiting_does_not_stop_the_load_of_the_others(site: Site) -> None:
    async def work() -> None:
        site.load_gate = asyncio.Event()
        first, second = (asyncio.ensure_future(site.manager.acquire("tiny")) for _ in range(2))
        await site.until(lambda: site.manager._loading)
        first.cancel()
        site.load_gate.set()
        assert (await second).active == 1
        await site.manager.close()

    run(work())


def test_a_failed_load_reaches_all_and_the_next_request_tries_again(site: Site) -> None:
    async def work() -> None:
        site.load_error = refused()
        results = await asyncio.gather(
            *(site.manager.acquire("tiny") for _ in range(3)), return_exceptions=True
        )
        assert [type(result) for result in results] == [ModelLoadError] * 3
        site.load_error = None
        assert (await site.manager.acquire("tiny")).active == 1
        await site.manager.close()

    run(work())


def test_keep_alive_starts_when_the_last_reply_ends_k31(site: Site) -> None:
    async def work() -> None:
        first = await site.manager.acquire("tiny", 0.05)
        second = await site.manager.acquire("tiny", 0.05)
        await asyncio.sleep(0.1)
        site.manager.release(first)
        await asyncio.sleep(0.1)
        assert site.manager.loaded() == [second]
        site.manager.release(second)
        assert site.manager.loaded() == [second]
        await site.until(lambda: not site.manager.loaded())
        await site.until(lambda: not site.workers[0].alive)
        await site.manager.close()

    run(work())


def test_the_latest_keep_alive_counts_and_negative_stays_k31(site: Site) -> None:
    async def work() -> None:
        model = await site.manager.acquire("tiny", 0.01)
        site.manager.release(await site.manager.acquire("tiny", math.inf))
        site.manager.release(model)
        await asyncio.sleep(0.05)
        assert model.expires_at is None
        assert site.manager.loaded() == [model]
        site.manager.release(await site.manager.acquire("tiny"))
        assert model.keep_alive == site.config.keep_alive
        assert model.expires_at is not None
        await site.manager.close()

    run(work())


def test_zero_unloads_when_the_request_ends_even_right_after_loading_k31(site: Site) -> None:
    async def work() -> None:
        model = await site.manager.acquire("tiny", 0)
        assert site.manager.loaded() == [model]
        site.manager.release(model)
        await site.until(lambda: not site.manager.loaded())
        await site.manager.close()

    run(work())


def test_a_file_that_changed_is_loaded_anew_once_no_reply_needs_it(site: Site) -> None:
    path = site.config.models_dir / "tiny.gguf"

    async def work() -> None:
        old = await site.manager.acquire("tiny", math.inf)
        path.unlink()
        random_model(path, width=128, layers=1)
        assert await site.manager.acquire("tiny") is old
        site.manager.release(old)
        assert await site.manager.acquire("tiny") is old
        for _ in range(2):
            site.manager.release(old)
        new = await site.manager.acquire("tiny")
        assert new is not old and new.stored.facts.embedding_length == 128
        assert site.manager.loaded() == [new] and len(site.workers) == 2
        await site.until(lambda: not site.workers[0].alive)
        os.utime(path)  # the same content
        assert await site.manager.acquire("tiny") is new
        await site.manager.close()

    run(work())


def test_another_name_of_a_file_that_changed_does_not_share_the_old_files_worker(
    site: Site,
) -> None:
    path = site.config.models_dir / "tiny.gguf"
    for name in ("mario", "luigi"):
        site.store.keep(name, path, Recipe(system=f"You are {name}."))

    async def work() -> None:
        old = await site.manager.acquire("tiny", math.inf)
        path.unlink()
        random_model(path, width=128, layers=1)
        mario, luigi = [await site.manager.acquire(name) for name in ("mario", "luigi")]
        first, second = site.workers  # the new one is shared
        assert first.alive and second.alive
        assert mario.stored.facts.embedding_length == 128
        site.manager.release(old)
        site.manager.release(mario)
        assert await site.manager.acquire("mario") is mario
        await site.until(lambda: not first.alive)  # nothing needs it any more
        assert second.alive and set(site.manager.loaded()) == {mario, luigi}
        await site.manager.close()

    run(work())


@pytest.mark.parametrize("left", [None, b"GGUF"], ids=["gone", "broken"])
def test_what_is_loaded_is_unloaded_also_where_its_file_is_gone(
    left: bytes | None, site: Site
) -> None:
    path = site.config.models_dir / "tiny.gguf"

    async def work() -> None:
        site.manager.release(await site.manager.acquire("tiny", math.inf))
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        with pytest.raises((ModelNotFoundError, ModelFileError)):
            await site.manager.unload("other" if left is None else "tin:latest")
        assert (await site.manager.unload("Tiny")).name == "tiny:latest"
        assert not site.manager.loaded()
        with pytest.raises((ModelNotFoundError, ModelFileError)):
            await site.manager.unload("tiny")
        await site.manager.close()

    run(work())


def test_unload_waits_for_running_replies(site: Site) -> None:
    async def work() -> None:
        model = await site.manager.acquire("tiny")
        assert (await site.manager.unload("tiny:latest")).name == "tiny:latest"
        assert site.manager.loaded() == [model]
        site.manager.release(model)
        await site.until(lambda: not site.manager.loaded())
        await site.manager.unload("tiny")  # not loaded: nothing to do
        with pytest.raises(ModelNotFoundError):
            await site.manager.unload("other")
        await site.manager.close()

    run(work())


@pytest.mark.parametrize("stays", [True, False], ids=["waiting", "gone"])
def test_zero_while_the_model_loads_unloads_it_after_the_replies_k31_ol06(
    site: Site, stays: bool
) -> None:
    async def work() -> None:
        site.load_gate = asyncio.Event()
        first = asyncio.ensure_future(site.manager.acquire("tiny"))
        await site.until(lambda: site.manager._loading)
        await site.manager.unload("tiny")
        if not stays:
            first.cancel()
        site.load_gate.set()
        if stays:
            model = await first
            assert site.manager.loaded() == [model]
            site.manager.release(model)
        await site.until(lambda: site.workers and not site.workers[0].alive)
        assert not site.manager.loaded()
        await site.manager.close()

    run(work())


def test_the_latest_keep_alive_of_those_who_wait_for_a_load_counts_k31(site: Site) -> None:
    async def work() -> None:
        site.load_gate = asyncio.Event()
        first = asyncio.ensure_future(site.manager.acquire("tiny", 0))
        await site.until(lambda: site.manager._loading)
        await site.manager.unload("tiny")
        second = asyncio.ensure_future(site.manager.acquire("tiny", 40))
        await asyncio.sleep(0.05)
        site.load_gate.set()
        assert (await first) is (await second)
        assert first.result().keep_alive == 40
        site.load_gate.clear()
        await site.manager.close()

    run(work())


def test_a_failed_load_leaves_no_keep_alive_behind(site: Site) -> None:
    async def work() -> None:
        site.load_error = refused()
        with pytest.raises(ModelLoadError):
            await site.manager.acquire("tiny", 0)
        site.load_error = None
        model = await site.manager.acquire("tiny")
        assert model.keep_alive == site.config.keep_alive
        await site.manager.close()

    run(work())


def test_a_failed_preload_is_said_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        site.load_error = refused()
        site.manager.preload(["tiny"])
        await asyncio.gather(*site.manager._closing)
        await site.manager.close()

    run(work())
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_dead_worker_is_dropped_and_the_next_request_loads_again(site: Site) -> None:
    async def work() -> None:
        model = await site.manager.acquire("tiny")
        site.workers[0].alive = False
        assert site.manager.loaded() == []
        again = await site.manager.acquire("tiny")
        assert again is not model
        assert len(site.workers) == 2
        site.manager.release(model)
        assert site.manager.loaded() == [again]
        await site.manager.close()

    run(work())


def test_preloaded_models_stay_unless_a_request_says_otherwise(site: Site) -> None:
    async def work() -> None:
        site.manager.preload(["tiny"])
        await site.until(site.manager.loaded)
        (model,) = site.manager.loaded()
        await site.until(lambda: model.active == 0)
        site.manager.release(await site.manager.acquire("tiny"))
        assert model.expires_at is None
        site.manager.release(await site.manager.acquire("tiny", 5.0))
        assert model.expires_at is not None
        await site.manager.close()

    run(work())


def test_closing_ends_a_load_and_refuses_new_ones(site: Site) -> None:
    async def work() -> None:
        site.load_gate = asyncio.Event()
        waiting = asyncio.ensure_future(site.manager.acquire("tiny"))
        await site.until(lambda: site.manager._loading)
        await site.manager.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(OverloadedError):
            await site.manager.acquire("tiny")

    run(work())


def test_an_alias_stands_for_a_model_and_a_models_own_name_comes_first_an03(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "models"
    for name in ("tiny", "gpt-4"):
        write_model(folder / f"{name}.gguf")
    aliases = (("gpt-*", "tiny"), ("Exact:1", "gpt-4"), ("lost", "nothing"))
    site = Site(Config(models_dir=folder, cache_dir=tmp_path / "cache", aliases=aliases))

    async def work() -> None:
        meant = {"gpt-5:mini": "tiny", "GPT-4": "gpt-4", "exact:1": "gpt-4", "tiny": "tiny"}
        for asked, name in meant.items():
            assert (await site.manager.find(asked)).name == f"{name}:latest"
        for asked in ("exact", "other", "lost"):
            with pytest.raises(ModelNotFoundError):
                await site.manager.find(asked)
        model = await site.manager.acquire("gpt-5")
        assert model.name == "tiny:latest"
        site.manager.release(model)
        assert (await site.manager.unload("gpt-9")).name == "tiny:latest"
        await site.manager.close()

    run(work())


def test_claude_names_mean_the_model_that_is_there_an03(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    write_model(folder / "one.gguf")
    settings = {"models_dir": folder, "cache_dir": tmp_path / "cache"}
    site = Site(Config(**settings))  # type: ignore[arg-type]

    async def meant(asked: str = "claude-sonnet-5-20270101") -> str:
        return (await site.manager.find(asked)).name

    async def work() -> None:
        assert await meant() == "one:latest"
        write_model(folder / "two.gguf")
        with pytest.raises(ModelNotFoundError, match=r"not found.*2 models.*claude-\*=NAME"):
            await meant()
        site.manager.release(await site.manager.acquire("two"))
        assert await meant() == "two:latest"
        await site.manager.unload("two")
        assert await meant() == "two:latest"
        site.manager.preload(["one"])
        assert await meant() == "one:latest"
        with pytest.raises(ModelNotFoundError):
            await meant("clod")
        await site.manager.close()

    run(work())


def test_claude_names_never_mean_an_encoder_an03(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    write_model(folder / "one.gguf")
    encoder_model(folder / "encoder.gguf")
    site = Site(Config(models_dir=folder, cache_dir=tmp_path / "cache"))

    async def work() -> None:
        assert (await site.manager.find("claude-opus-9")).name == "one:latest"
        site.manager.release(await site.manager.acquire("encoder", need="embedding"))
        assert (await site.manager.find("claude-opus-9")).name == "one:latest"
        site.manager.preload(["encoder", "one"])
        assert (await site.manager.find("claude-opus-9")).name == "one:latest"
        await site.manager.close()

    run(work())


def test_the_text_side_is_read_once_and_without_a_worker_an23(site: Site) -> None:
    async def work() -> None:
        texts = await asyncio.gather(*(site.manager.text("tiny") for _ in range(5)))
        assert len({id(text) for text in texts}) == 1
        assert not site.workers
        model = await site.manager.acquire("tiny")
        assert model.text is texts[0] is await site.manager.text("tiny")
        with pytest.raises(ModelNotFoundError):
            await site.manager.text("other")
        await site.manager.close()

    run(work())


def test_a_worker_can_ask_for_its_models_vocabulary_k08(site: Site) -> None:
    """For grammars: it is made when the worker calls, not at the load."""

    async def work() -> None:
        model = await site.manager.acquire("tiny")
        table = site.workers[0].token_table()  # type: ignore[attr-defined]
        assert len(table.pieces) == model.tokenizer.vocab_size
        assert set(table.end_ids) == model.tokenizer.stop_ids
        site.manager.release(model)
        await site.manager.close()

    run(work())
