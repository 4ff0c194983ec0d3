"""Which model guesses for which: the setting, names and paths, and the memory of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from emberd.config import Config
from emberd.errors import ConfigError
from emberd.models.drafts import check_drafts, find_draft
from emberd.models.facts import read_facts
from emberd.models.memory import cpu_step_bytes, need_of, taken
from site_fakes import Site, run, write_model
from tiny_encoder import encoder_model
from tiny_gguf import random_model


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("small", (("*", "small"),)),
        ("a=small, big*=/x/y.gguf", (("a", "small"), ("big*", "/x/y.gguf"))),
    ],
)
def test_the_setting_names_a_draft_for_all_or_by_model(
    text: str, found: tuple[tuple[str, str], ...]
) -> None:
    assert Config.from_env({"EMBERD_DRAFT": text}).draft == found


@pytest.mark.parametrize("text", ["=small", "a=", "a, =b"])
def test_half_a_pair_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"EMBERD_DRAFT: .*MODEL=DRAFT"):
        Config.from_env({"EMBERD_DRAFT": text})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    for name in ("one", "two", "small"):
        write_model(tmp_path / "models" / f"{name}.gguf")
    folders = {"models_dir": tmp_path / "models", "cache_dir": tmp_path / "cache"}
    return Site(Config(draft=(("one", "small"),), device="cpu", **folders))


def drafts(site: Site, *names: str) -> list[str | None]:
    """Stems of the drafts that workers were started with."""

    async def work() -> None:
        for name in names:
            await site.manager.acquire(name)
        await site.manager.close()

    run(work())
    paths = [worker.options.draft_path for worker in site.workers]
    return [None if path is None else Path(path).stem for path in paths]


def test_only_the_models_that_are_named_get_it(site: Site) -> None:
    assert drafts(site, "one", "two", "small") == ["small", None, None]


def test_a_model_is_not_its_own_draft_and_encoders_have_none(site: Site, tmp_path: Path) -> None:
    config, store = replace(site.config, draft=(("*", "small"),)), site.store
    assert find_draft(store.find("two"), config, store).path == store.find("small").path
    assert find_draft(store.find("small"), config, store).path is None
    encoder_model(tmp_path / "models" / "encoder.gguf")
    assert (
        find_draft(
            store.find(store.register(str(tmp_path / "models/encoder.gguf"))), config, store
        ).path
        is None
    )
    by_path = replace(config, draft=(("*", str(tmp_path / "models/small.gguf")),))
    assert find_draft(store.find("two"), by_path, store).path == tmp_path / "models/small.gguf"


def test_a_draft_that_is_not_there_is_said_by_name(site: Site) -> None:
    config = replace(site.config, draft=(("*", "nowhere"),))
    with pytest.raises(ConfigError, match="--draft: 'nowhere'"):
        find_draft(site.store.find("one"), config, site.store)


@pytest.mark.parametrize("target", ["/no/such/small.gguf", "~nosuchuser/small.gguf", "x" * 5000])
def test_a_path_that_is_not_there_is_told_whole_at_the_start_only(site: Site, target: str) -> None:
    config = replace(site.config, draft=(("*", target),))
    with pytest.raises(ConfigError) as started:
        check_drafts(config, site.store)
    with pytest.raises(ConfigError) as asked:
        find_draft(site.store.find("one"), config, site.store)
    name = target.rpartition("/")[2]
    assert f"'{target}'" in started.value.message
    assert f"--draft: '{name[:64]}'" in asked.value.message and "/" not in asked.value.message


def test_every_draft_of_the_settings_is_looked_at_when_the_daemon_starts(
    site: Site, tmp_path: Path
) -> None:
    check_drafts(replace(site.config, draft=(("one", "small"), ("*", "two"))), site.store)
    encoder_model(tmp_path / "models" / "encoder.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    for target, said in [
        ("nowhere", "neither a model"),
        ("encoder", "makes embeddings"),
        (str(tmp_path / "broken.gguf"), "--draft: "),
    ]:
        with pytest.raises(ConfigError, match=said):
            check_drafts(
                replace(site.config, draft=(("one", "small"), ("odd*", target))), site.store
            )


def test_steps_of_a_draft_on_the_cpu_count_in_what_is_used(site: Site) -> None:
    async def used(name: str, draft: str) -> int:
        model = await site.manager.acquire(name)
        info = site.workers[-1].info = replace(model.info, tier="cpu", draft=draft)
        facts = [model.stored.facts, *([site.store.find("small").facts] if draft else [])]
        steps = sum(cpu_step_bytes(one, site.config, info.context_length) for one in facts)
        assert site.manager._room._used([[model]]) == taken(info) + steps
        return steps

    async def work() -> None:
        assert await used("one", "small.gguf") > await used("two", "")
        await site.manager.close()

    run(work())


@pytest.mark.parametrize("tier", ["cpu", "mid"])
def test_room_is_made_for_both(tmp_path: Path, tier: str) -> None:
    facts = read_facts(random_model(tmp_path / "m.gguf", layers=3), tmp_path)
    draft = read_facts(random_model(tmp_path / "d.gguf", layers=1), tmp_path)
    config = Config(ctx=512)
    both, alone, beside = (
        need_of(facts, config, tier, draft),  # type: ignore[arg-type]
        need_of(facts, config, tier),  # type: ignore[arg-type]
        need_of(draft, config, tier),  # type: ignore[arg-type]
    )
    assert both.fixed == alone.fixed + beside.fixed
    assert both.kv_least == alone.kv_least + beside.kv_least
    given = replace(config, kv_memory=1 << 20)
    assert need_of(facts, given, tier, draft).kv_most == 1 << 20, "a size that is given is both's"  # type: ignore[arg-type]
