"""Places of other programs: what is found there, under which names, once; what is broken breaks no list."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from emberd.config import Config
from emberd.errors import BadRequestError, ConfigError, ModelFileError, ModelNotFoundError
from emberd.models.found import preferred, quant_label
from emberd.models.recipe import Recipe
from emberd.models.store import ModelStore
from ollama_layout import write_store
from tiny_gguf import random_model, split_gguf

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(
        tmp_path_factory.mktemp("small") / "small.gguf", width=64, ffn=64, heads=1, kv_heads=1
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(home / "hub"))
    return home


@pytest.fixture
def store(tmp_path: Path, home: Path) -> ModelStore:
    return ModelStore(tmp_path / "own", tmp_path / "cache", Config().places)


@pytest.fixture
def put(small: Path, home: Path) -> Callable[..., Path]:
    """A copy of the small model at a path of the home folder."""

    def copy(*parts: str) -> Path:
        path = home.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(small, path)
        return path

    return copy


def in_hub_cache(home: Path, repository: str, revision: str, name: str, content: Path) -> Path:
    """As huggingface_hub lays it out: a link in the snapshot to a blob."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    blob = folder / "blobs" / f"{revision}-{name.replace('/', '-')}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(content, blob)
    link = folder / "snapshots" / revision / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(revision)
    return link


def names(store: ModelStore) -> set[str]:
    return {model.name for model in store.models()}


def test_a_missing_home_holds_no_models(store: ModelStore) -> None:
    assert store.models() == []


def test_the_hugging_face_cache(store: ModelStore, home: Path, small: Path) -> None:
    for quant in ("Q8_0", "Q4_K_M"):
        in_hub_cache(home, "Owner/Repo-GGUF", "b" * 40, f"repo-{quant.lower()}.gguf", small)
    in_hub_cache(home, "Owner/Repo-GGUF", "b" * 40, "mmproj-f16.gguf", small)
    dangling = home / "hub/models--Owner--Repo-GGUF/snapshots" / ("b" * 40) / "gone-Q2_K.gguf"
    dangling.symlink_to("../../blobs/gone")
    (home / "hub" / "datasets--a--b").mkdir()
    assert names(store) == {"hf.co/Owner/Repo-GGUF:Q8_0", "hf.co/Owner/Repo-GGUF:Q4_K_M"}
    for name in (
        "hf.co/owner/repo-gguf",
        "owner/repo-gguf",
        "huggingface.co/Owner/Repo-GGUF:q4_k_m",
    ):
        assert store.find(name).name == "hf.co/Owner/Repo-GGUF:Q4_K_M"
    assert store.find("Owner/Repo-GGUF:Q8_0").name == "hf.co/Owner/Repo-GGUF:Q8_0"
    assert store.find("repo-q8_0").source == "huggingface"


def test_of_two_revisions_main_is_meant(store: ModelStore, home: Path, small: Path) -> None:
    in_hub_cache(home, "o/r", "a" * 40, "m-Q4_0.gguf", small)
    old = in_hub_cache(home, "o/r", "a" * 40, "m-F16.gguf", small)
    new = in_hub_cache(home, "o/r", "b" * 40, "m-Q4_0.gguf", small)
    assert names(store) == {"hf.co/o/r:Q4_0", "hf.co/o/r:F16"}
    assert store.find("o/r:Q4_0").path == new
    assert store.find("o/r:F16").path == old  # only the older revision has it


def test_a_split_model_of_the_cache_is_listed_once_k24(
    store: ModelStore, home: Path, small: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "m-Q4_K_M.gguf"
    shutil.copy(small, whole)
    parts = split_gguf(whole, max_tensors=8)
    for part in parts:
        in_hub_cache(home, "o/r", "a" * 40, f"Q4_K_M/{part.name}", part)
    (model,) = store.models()
    assert model.name == "hf.co/o/r:Q4_K_M"
    assert model.size == sum(part.stat().st_size for part in parts)
    for asked in (whole.stem, parts[0].stem, parts[1].stem.upper()):  # by the name of a part too
        assert store.find(asked) == model
    second = home / "hub/models--o--r/snapshots" / ("a" * 40) / "Q4_K_M" / parts[1].name
    second.unlink()
    assert store.models() == []
    with pytest.raises(ModelFileError, match=f"{parts[1].name} is missing"):
        store.find("o/r")


def test_lm_studio(store: ModelStore, home: Path, put: Callable[..., Path]) -> None:
    put(".lmstudio", "models", "publisher", "model", "model-q4_0.gguf")
    assert names(store) == {"hf.co/publisher/model:Q4_0"}
    assert store.find("publisher/model").source == "lmstudio"
    (home / "elsewhere").mkdir()
    (home / ".lmstudio-home-pointer").write_text("\n")  # says nothing
    assert store.find("publisher/model").source == "lmstudio"
    (home / ".lmstudio-home-pointer").write_text(str(home / "elsewhere"))
    store.forget()
    assert store.models() == []


def test_the_models_folder_at_home_and_any_other(
    tmp_path: Path, home: Path, put: Callable[..., Path], small: Path
) -> None:
    put("models", "alpha.gguf")
    other = tmp_path / "other" / "beta"
    other.mkdir(parents=True)
    shutil.copy(small, other / "q4.gguf")
    places = Config.from_env({}, places=f"home,{tmp_path / 'other'}").places
    store = ModelStore(tmp_path / "own", tmp_path / "cache", places)
    assert names(store) == {"alpha:latest", "beta:q4"}


def test_ollamas_store(store: ModelStore, home: Path, small: Path) -> None:
    folder, model = home / ".ollama" / "models", small.read_bytes()
    write_store(
        folder,
        f"{LIBRARY}/mario/latest",
        model,
        system="You are Mario.",
        params={"temperature": 0.5, "stop": ["<end>"], "num_gpu": 3, "top_k": "many"},
        template="{{ .System }} {{ .Prompt }}",
        license="free",
        messages=[{"role": "user", "content": "hi"}],
    )
    write_store(folder, "hf.co/owner/repo/Q4_0", model)
    write_store(folder, "registry.ollama.ai/someone/thing/1b", model)
    assert names(store) == {"mario:latest", "hf.co/owner/repo:Q4_0", "someone/thing:1b"}
    for name in ("library/mario", f"{LIBRARY}/Mario:latest"):
        assert store.find(name).name == "mario:latest"
    assert store.find("huggingface.co/owner/repo:q4_0").name == "hf.co/owner/repo:Q4_0"
    recipe = store.find("mario").recipe
    assert (recipe.system, recipe.template, recipe.license) == ("You are Mario.", "", ("free",))
    assert recipe.go_template == "{{ .System }} {{ .Prompt }}"  # told, never run
    assert dict(recipe.parameters) == {"temperature": 0.5, "stop": ("<end>",)}
    assert recipe.messages == (("user", "hi"),)


def test_what_is_broken_in_ollamas_store_is_left_out(
    store: ModelStore, home: Path, small: Path
) -> None:
    folder, model = home / ".ollama" / "models", small.read_bytes()
    write_store(folder, f"{LIBRARY}/good/latest", model)
    manifest = write_store(folder, f"{LIBRARY}/escapes/latest", model)
    manifest.write_text(manifest.read_text().replace("sha256:", "sha256:../../"))
    write_store(folder, f"{LIBRARY}/adapted/latest", model, adapter=b"lora")
    for name, content in (("empty", ""), ("text", "{"), ("list", "[]"), ("none", '{"layers": []}')):
        path = folder / "manifests" / LIBRARY / name / "latest"
        path.parent.mkdir()
        path.write_text(content)
    write_store(folder, f"{LIBRARY}/half/latest", model + b"the rest")
    blobs = sorted((folder / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    blobs[-1].write_bytes(model)  # of `half`: less than its manifest says
    assert names(store) == {"good:latest"}


def test_what_no_parameter_can_be_is_left_out_of_ollamas_recipes(
    store: ModelStore, home: Path, small: Path
) -> None:
    """A number of 400 digits kept the daemon from starting."""
    folder = home / ".ollama" / "models"
    write_store(
        folder,
        f"{LIBRARY}/odd/latest",
        small.read_bytes(),
        params='{"num_ctx": 9' + "9" * 400 + ', "top_p": NaN, "seed": 1e999, "stop": ["\\ud800"]}',
        messages='[{"role": "user", "content": "\\ud83d"}]',
    )
    os.mkfifo(folder / "manifests" / LIBRARY / "odd" / "pipe")  # reading it would wait for ever
    assert names(store) == {"odd:latest"}
    recipe = store.find("odd").recipe
    assert dict(recipe.parameters) == {"stop": ("\ufffd",)}
    assert recipe.messages == (("user", "\ufffd"),)


def test_one_file_seen_from_two_places_is_listed_once_under_all_names(
    store: ModelStore, home: Path, small: Path, put: Callable[..., Path]
) -> None:
    link = in_hub_cache(home, "o/r", "a" * 40, "m-Q4_0.gguf", small)
    (home / "models").mkdir()
    (home / "models" / "mine.gguf").symlink_to(link)
    put("models", "other.gguf")
    assert names(store) == {"hf.co/o/r:Q4_0", "other:latest"}
    assert store.find("mine").name == "hf.co/o/r:Q4_0"


def test_a_name_that_two_places_give_means_the_first(
    store: ModelStore, home: Path, small: Path, put: Callable[..., Path]
) -> None:
    write_store(home / ".ollama" / "models", f"{LIBRARY}/same/latest", small.read_bytes())
    put("models", "same.gguf")
    store.models_dir.mkdir()
    shutil.copy(small, store.models_dir / "same.gguf")
    assert names(store) == {"same:latest", "library/same:latest"}
    assert store.find("same").source == "folder"
    assert store.find("library/same").source == "ollama"


def test_nothing_of_other_programs_is_deleted(
    store: ModelStore, home: Path, small: Path, put: Callable[..., Path]
) -> None:
    write_store(home / ".ollama" / "models", f"{LIBRARY}/theirs/latest", small.read_bytes())
    put("models", "mine.gguf")
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    for name in ("theirs", "mine"):
        with pytest.raises(BadRequestError, match="only reads"):
            store.delete(name)
    with pytest.raises(ModelNotFoundError):
        store.delete("nobody")
    assert before == {path: path.stat().st_mtime_ns for path in home.rglob("*")}


def test_a_new_file_is_found_at_once_and_a_removed_one_is_not(
    store: ModelStore, put: Callable[..., Path]
) -> None:
    with pytest.raises(ModelNotFoundError):
        store.find("late")
    path = put("models", "late.gguf")
    assert store.find("late").path == path
    path.unlink()
    with pytest.raises(ModelNotFoundError):
        store.find("late")


def test_names_that_cannot_be_printed_break_no_list(
    store: ModelStore, home: Path, small: Path, put: Callable[..., Path]
) -> None:
    put("models", "good.gguf")
    put("models", "line\nbreak.gguf")
    (home / "models" / os.fsdecode(b"no-utf8-\xff")).mkdir()
    put("models", os.fsdecode(b"no-utf8-\xff"), "q4.gguf")
    put(".lmstudio", "models", os.fsdecode(b"\xfe"), "repo", "m.gguf")
    write_store(home / ".ollama" / "models", os.fsdecode(b"h/n/\xff/latest"), small.read_bytes())
    assert names(store) == {"good:latest"}


def test_what_nothing_needs_is_removed_in_time(store: ModelStore, small: Path) -> None:
    blobs = store.pulled.root / "blobs"
    blobs.mkdir(parents=True)
    ages = {
        "new": 3600,
        "old": 2 * 86400,
        "used": 9 * 86400,
        "cut.part": 2 * 86400,
        "left.part": 15 * 86400,
    }
    for name, age in ages.items():
        shutil.copy(small, blobs / name)
        os.utime(blobs / name, (time.time() - age,) * 2)
    store.keep("mine", blobs / "used")
    store.pulled.tidy()
    assert {path.name for path in blobs.iterdir()} == {"new", "used", "cut.part"}
    assert names(store) == {"mine:latest"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 9, "name": "x", "file": "y"}'])
def test_a_damaged_manifest_breaks_no_list(
    store: ModelStore, put: Callable[..., Path], content: str
) -> None:
    put("models", "good.gguf")
    folder = store.pulled.root / "models"
    folder.mkdir(parents=True)
    (folder / "x%3Alatest.json").write_text(content)
    assert names(store) == {"good:latest"}


def test_a_model_made_under_a_file_s_name_hides_it_until_it_is_deleted(
    store: ModelStore, put: Callable[..., Path]
) -> None:
    path = put("models", "mine.gguf")
    store.keep("mine", path, Recipe(system="Mine."))
    assert store.find("mine").recipe.system == "Mine." and names(store) == {"mine:latest"}
    store.delete("mine")
    assert store.find("mine").recipe == Recipe()


def test_places_are_a_setting() -> None:
    assert Config().places == ("huggingface", "ollama", "lmstudio", "home")
    assert Config.from_env({"EMBERD_PLACES": "none"}).places == ()
    assert Config.from_env({"EMBERD_PLACES": "ollama, /data/x"}).places == ("ollama", "/data/x")
    with pytest.raises(ConfigError, match="'olama' is not one of huggingface"):
        Config.from_env({"EMBERD_PLACES": "olama"})


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("smollm2-135m-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-Q8_0-00001-of-00003.gguf", "Q8_0"),
        ("m-IQ4_NL.gguf", "IQ4_NL"),
        ("m.fp16.gguf", "F16"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("m-Q6_K-v2.gguf", "Q6_K"),
        ("plain.gguf", None),
        ("qwen-q.gguf", None),
    ],
)
def test_quantizations_are_read_from_file_names(file: str, label: str | None) -> None:
    assert quant_label(file) == label


def test_the_usual_quantization_is_meant_where_none_is_said() -> None:
    assert preferred(["Q2_K", "Q8_0", "Q4_K_M", "F16"]) == "Q4_K_M"
    assert preferred(["Q2_K", "Q8_0", "F16"]) == "Q8_0"
    assert preferred(["IQ3_M", "IQ2_M"]) == "IQ2_M"
