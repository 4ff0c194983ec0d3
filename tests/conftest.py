"""Fixtures that every package's tests share: case files, real models, the device, random numbers."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from emberd.runtime.device import Device
    from emberd.runtime.kernel import Kernels

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))

CASES = Path(os.environ.get("EMBERD_CASES", ROOT.parent / "shared" / "cases"))
MODELS = Path(
    os.environ.get("EMBERD_TEST_MODELS", Path.home() / ".cache" / "emberd-test-models")
).expanduser()
_NUMBERS = itertools.count()
MODEL_FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m": "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "all-minilm-l6-v2": "all-MiniLM-L6-v2-F32.gguf",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start whole daemons take time, and so do long tables of cases: the quick group has every tenth."""
    tests = [item.nodeid.partition("[")[0] for item in items]
    num_cases, places = Counter(tests), Counter[str]()
    chosen = {test for test, item in zip(tests, items, strict=True) if _is_slow(item)}
    for test, item in zip(tests, items, strict=True):
        starts_daemons = (
            item.path.parent.name in {"end_to_end", "clients"}
            or item.path.stem == "test_cli_daemon"
        )
        left_out = num_cases[test] > 4 and places[test] % 10 and test not in chosen
        if starts_daemons or (left_out and item.path.parent.name != "tests"):
            item.add_marker(pytest.mark.slow)
        places[test] += 1


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def pytest_collection_finish() -> None:
    """Modules and tests stay: the collector need not look through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def wide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models of the runtime's tests take the forms of usual ones, one int8 an activation, unless `narrow`."""
    if request.path.parent.name in ("runtime", "verify"):
        from emberd.runtime import activations

        monkeypatch.setattr(activations, "NARROW", 0)


@pytest.fixture
def narrow(wide: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of this test are narrow ones."""
    from emberd.runtime import activations

    monkeypatch.setattr(activations, "NARROW", 1 << 30)


@pytest.fixture(autouse=True)
def own_folders(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """No test reads or writes the user's models, caches or settings. A folder is made for those that ask for one."""
    if "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
    else:
        folder = tmp_path_factory.getbasetemp() / f"never-made-{next(_NUMBERS)}"
    for name in [key for key in os.environ if key.startswith("EMBERD_")]:
        if name not in {"EMBERD_CASES", "EMBERD_TEST_MODELS", "EMBERD_REQUIRE_DEVICE"}:
            monkeypatch.delenv(name)
    for name in ("OLLAMA_HOST", "OLLAMA_ORIGINS", "OLLAMA_KV_CACHE_TYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EMBERD_PLACES", "none")
    monkeypatch.setenv("EMBERD_TUNE", "0")  # the tests of tuning say otherwise
    monkeypatch.setenv("EMBERD_VERIFY", "0")  # as those of checking kernels do
    monkeypatch.setenv("EMBERD_MODELS_DIR", str(folder / "models"))
    monkeypatch.setenv("EMBERD_CACHE_DIR", str(folder / "cache"))


@pytest.fixture(autouse=True)
def device_first(request: pytest.FixtureRequest) -> None:
    """A test that needs an adapter is given the shared device, also where it opens one by way of a runner."""
    if request.node.get_closest_marker("device") is not None:
        request.getfixturevalue("device")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Fresh random numbers every run; the seed is shown when the test fails."""
    seed = int(os.environ.get("EMBERD_TEST_SEED", secrets.randbits(32)))
    print(f"EMBERD_TEST_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """The handed case files; the test is skipped by name where they are missing."""
    if not CASES.is_dir():
        pytest.skip(f"case files not found at {CASES} (EMBERD_CASES)")
    return CASES


def _model(name: str) -> Path:
    path = MODELS / MODEL_FILES[name]
    if not path.is_file():
        pytest.skip(f"{path.name} not found in {MODELS}; scripts/fetch-models brings it")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return _model("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    return _model("gemma3-270m")


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    return _model("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """Made by scripts/convert-minilm."""
    return _model("all-minilm-l6-v2")


@pytest.fixture
def one_blas_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is equal bit for bit on the CPU device: how many threads each load takes is measured, and the order
    of sums goes by it."""
    monkeypatch.setattr("emberd.reference.threads.num_cores", lambda: 1)


@pytest.fixture
def broken_shaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the shaders, used in place of the real ones."""
    from emberd.runtime.compose import shader_dir

    folder = tmp_path / "shaders"
    shutil.copytree(ROOT / "shaders", folder)
    monkeypatch.setenv("EMBERD_SHADERS", str(folder))
    shader_dir.cache_clear()
    yield folder
    shader_dir.cache_clear()


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """An open device: a real GPU, else software Vulkan. EMBERD_REQUIRE_DEVICE=1 makes none a failure."""
    from emberd.errors import DeviceError
    from emberd.runtime.device import open_device

    try:
        opened = open_device("gpu")
    except DeviceError as error:
        if os.environ.get("EMBERD_REQUIRE_DEVICE") == "1":
            pytest.fail(f"no WebGPU adapter: {error}")
        pytest.skip(f"no WebGPU adapter: {error}")
    with pytest.MonkeyPatch.context() as patch:
        _share(opened, patch)
        yield opened
    opened.close()


def _share(device: Device, patch: pytest.MonkeyPatch) -> None:
    """Runners of this process are given that device, so that each kernel is compiled once: on software Vulkan
    compiling is what most tests' time would go to. Not where a test's settings make another device of it."""
    from emberd.runtime import device as devices
    from emberd.runtime import runner, text_runner

    really_open = devices.open_device

    def opened(wanted: str = "gpu") -> Device:
        own = {"EMBERD_MAX_BINDING_BYTES", "EMBERD_DISABLE_SUBGROUPS"} & os.environ.keys()
        if wanted != "gpu" or own:
            return really_open(wanted)
        lent = copy.copy(device)
        lent.allocated_bytes = 0
        lent.close = lambda: None  # type: ignore[method-assign]
        return lent

    for module in (devices, text_runner, runner):
        patch.setattr(module, "open_device", opened)


@pytest.fixture(scope="session")
def kernels(device: Device) -> Kernels:
    from emberd.runtime.kernel import Kernels

    return Kernels(device)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a benchmark module as its scripts do, and forgets it after the test."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)

    def named(name: str) -> ModuleType:
        return __import__(name)

    yield named
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and (
            Path(str(sys.modules[name].__file__)).parent == ROOT / "benchmarks"
        ):
            del sys.modules[name]
