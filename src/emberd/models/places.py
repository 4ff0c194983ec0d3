"""Places where other programs keep models: the Hugging Face cache, LM Studio, ~/models, folders named by hand.

They are read, never written to; what is broken or half there is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .found import MAX_FOLDERS, Found, found_in_folder, found_in_repository, gguf_files
from .ollama_store import found_in_ollama

_FOLDERS_IN_REPOSITORY = 2


def found_in_place(place: str) -> Iterator[Found]:
    """`place`: huggingface, ollama, lmstudio, home, or the path of a folder."""
    if (find := _PLACES.get(place)) is not None:
        yield from find()
    else:
        yield from found_in_folder(Path(place).expanduser(), "folder")


def _huggingface() -> Iterator[Found]:
    from huggingface_hub import constants  # takes its time

    for repository in _folders(Path(constants.HF_HUB_CACHE)):
        kind, _, name = repository.name.partition("--")
        if kind == "models" and name:
            yield from found_in_repository(
                name.replace("--", "/"), list(_newest_files(repository)), "huggingface"
            )


def _newest_files(repository: Path) -> Iterator[Path]:
    """Each file once, of the revision `main` where that has it, else of the newest."""
    try:
        main = (repository / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        main = ""
    snapshots = sorted(_folders(repository / "snapshots"), key=_age)
    seen = set()
    for snapshot in sorted(snapshots, key=lambda folder: folder.name != main):
        for path in gguf_files(snapshot, _FOLDERS_IN_REPOSITORY):
            inside = path.relative_to(snapshot)
            if inside not in seen:
                seen.add(inside)
                yield path


def _lmstudio() -> Iterator[Found]:
    home = Path.home()
    try:
        pointer = (home / ".lmstudio-home-pointer").read_text().strip()
    except (OSError, ValueError):
        pointer = ""
    home_of_lmstudio = Path(pointer) if pointer else home / ".lmstudio"
    for folder in (home_of_lmstudio / "models", home / ".cache" / "lm-studio" / "models"):
        for publisher in _folders(folder):
            for repository in _folders(publisher):
                name = f"{publisher.name}/{repository.name}"
                files = list(gguf_files(repository, MAX_FOLDERS))
                yield from found_in_repository(name, files, "lmstudio")


def _ollama() -> Iterator[Found]:
    for folder in _ollama_folders():
        yield from found_in_ollama(folder)


def ollama_blob(digest: str, size: int) -> Path | None:
    """The file with that content in Ollama's store, where it is whole."""
    for folder in _ollama_folders():
        path = folder / "blobs" / digest.replace(":", "-")
        try:
            if path.stat().st_size == size:
                return path
        except OSError:
            continue
    return None


def _ollama_folders() -> list[Path]:
    given = os.environ.get("OLLAMA_MODELS", "").strip()
    of_the_service = Path("/usr/share/ollama/.ollama/models")
    return [Path(given)] if given else [Path.home() / ".ollama" / "models", of_the_service]


def _home() -> Iterator[Found]:
    yield from found_in_folder(Path.home() / "models", "home")


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if os.path.isdir(path))
    except OSError:
        return []


def _age(folder: Path) -> float:
    try:
        return -folder.stat().st_mtime
    except OSError:
        return 0.0


_PLACES: dict[str, Callable[[], Iterator[Found]]] = {
    "huggingface": _huggingface,
    "ollama": _ollama,
    "lmstudio": _lmstudio,
    "home": _home,
}
PLACES = tuple(_PLACES)
