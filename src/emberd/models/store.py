"""ModelStore: which models there are, and the file behind a name.

Files registered at the start, what was pulled or created, the models folder, and the places of other programs,
in that order. A caller's name is only looked up among the names found, so no name reaches outside. Knows
nothing of loading.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import BadRequestError, ConfigError, ModelFileError, ModelNotFoundError
from ..gguf.reader import GGUFFile
from ..gguf.shards import model_stem, shard_name
from ..text.reasoning import thinking_of
from .facts import ModelFacts, file_marks, read_facts
from .found import Found, found_in_folder, log_left_out
from .names import check_name, check_new_name, full_name, name_key
from .places import found_in_place, ollama_blob
from .pulled import PULLED, PullFolder
from .recipe import PLAIN, Recipe

logger = logging.getLogger(__name__)

_FRESH_SECONDS = 2.0  # how long what was found is looked up without looking again
_LATEST = datetime(9999, 1, 1, tzinfo=timezone.utc).timestamp()
"""Later times of files are told as this: no date of any time zone can hold all of them."""
_OWNERS = {
    "huggingface": "the Hugging Face cache",
    "ollama": "Ollama's store",
    "lmstudio": "LM Studio",
}

Key = tuple[Path, str, Recipe]
Content = tuple[Path, str]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that could be loaded."""

    name: str  # with its tag
    path: Path
    size: int  # bytes, of all its files
    modified: datetime  # UTC
    facts: ModelFacts
    source: str = "folder"
    recipe: Recipe = PLAIN

    @property
    def key(self) -> Key:
        """Equal for names that are served by one loaded model."""
        return self.path, "" if self.recipe == PLAIN else self.name, self.recipe

    @property
    def content(self) -> Content:
        """Equal for models that one worker serves: another file in the same place has another worker."""
        return self.path, self.facts.digest

    @property
    def digest(self) -> str:
        """64 hex digits, of the file's content and of the recipe where there is one."""
        if self.recipe == PLAIN:
            return self.facts.digest
        return hashlib.sha256((self.facts.digest + self.recipe.digest).encode()).hexdigest()


class ModelStore:
    """Names to files. All methods may block on the disk and may be called from any thread."""

    def __init__(self, models_dir: Path, cache_dir: Path, places: Sequence[str] = ()) -> None:
        self.models_dir = models_dir
        self.cache_dir = cache_dir
        self.pulled = PullFolder(models_dir)
        self.places = places
        self._registered: dict[str, Path] = {}  # full name -> file
        self._facts: dict[tuple[Path, object], ModelFacts | ModelFileError] = {}
        self._lock = threading.Lock()
        self._known: _Names | None = None

    def register(self, entry: str) -> str:
        """Make `entry` servable and give its name: a path of a GGUF file, or the name of a model that is there.

        For settings and flags, never for callers. Raises ConfigError.
        """
        path = Path(os.path.expanduser(entry))
        if os.path.isfile(path):
            name = file_name(path)
            self._registered[name] = Path(os.path.abspath(path))
            self._known = None
            return name
        try:
            return self._locate(check_name(entry)).name
        except ModelNotFoundError:
            pass
        except Exception as error:
            logger.debug("not a model name: %s", error)
        raise ConfigError(
            f"model '{entry}': no such file, and no model of that name in {self.models_dir}"
        )

    def models(self) -> list[StoredModel]:
        """Every model whose header is in order, newest first. Others are left out, with a line in the log."""
        described = []
        for found in self._look().listed:
            try:
                described.append(self._describe(found))
            except ModelNotFoundError:
                continue
            except ModelFileError as error:
                ours = found.source in ("folder", "pulled")
                level = logging.WARNING if ours else logging.INFO
                log_left_out(str(found.path), error.message, level)
        return sorted(described, key=lambda model: (-model.modified.timestamp(), model.name))

    def find(self, name: str) -> StoredModel:
        """The model called `name`. Raises BadRequestError, ModelNotFoundError or ModelFileError."""
        return self._describe(self._locate(check_name(name)))

    def metadata(self, stored: StoredModel) -> dict[str, Any]:
        """The file's own metadata, read anew. Raises ModelFileError."""
        with GGUFFile(stored.path) as file:
            return file.metadata

    def keep(self, name: str, path: Path, recipe: Recipe = PLAIN, param: str = "model") -> None:
        """From now on `name` means that file with that recipe, whatever files elsewhere are called so.

        Raises BadRequestError for a name that cannot be given.
        """
        self.pulled.keep(self.free_name(name, param), path, recipe)
        self._known = None

    def free_name(self, name: str, param: str = "model") -> str:
        """The full name, if something may be kept under it. Raises BadRequestError."""
        full = check_new_name(name, param)
        if name_key(full) in {name_key(known) for known in self._registered}:
            raise BadRequestError(
                f"'{param}': a file that was named at the daemon's start is called so", param
            )
        return full

    def check_servable(self, name: str) -> None:
        """Raises ModelFileError where what was kept as `name` cannot be served; it stays until it is deleted."""
        try:
            self.find(name)
        except ModelFileError as error:
            raise ModelFileError(
                f"'{name}' is here and cannot be served: {error.message}; emberd rm '{name}' removes it"
            ) from None

    def blob(self, digest: str, size: int) -> Path:
        """Where the blob is: in Ollama's store if that is a place and has it whole, else where it is to be kept."""
        own = self.pulled.blob(digest)
        if own.exists() or "ollama" not in self.places:
            return own
        return ollama_blob(digest, size) or own

    def deletable(self, name: str) -> Found:
        """What `name` means, if it was pulled or created. Raises BadRequestError for files that emberd only reads."""
        found = self._locate(check_name(name))
        if found.source != "pulled":
            raise BadRequestError(
                f"model '{name}' is a file in a place that emberd only reads ({_owner(found)}); delete it there",
                "model",
            )
        return found

    def delete(self, name: str) -> None:
        """Forget what was pulled or created as `name`. Raises as `deletable`, and EmberdError."""
        self.pulled.remove(self.deletable(name).name)
        self._known = None

    def check_file(self, path: Path) -> None:
        """Raises ModelFileError where the file cannot be served."""
        self._read_facts(path, file_marks(path))

    def forget(self) -> None:
        """Look anew at the next question."""
        self._known = None

    def _locate(self, name: str) -> Found:
        known = self._known
        if known is not None and time.monotonic() < known.until:
            found = known.find(name)
            if found is not None and os.path.exists(found.path):
                return found
        found = self._look().find(name)
        if found is None:
            raise ModelNotFoundError(name)
        return found

    def _look(self) -> _Names:
        self._known = known = _Names(self._scan())
        return known

    def _scan(self) -> Iterator[Found]:
        for name, path in self._registered.items():
            yield Found(name, path, "registered")
        yield from self.pulled.found()
        for found in found_in_folder(self.models_dir, "folder"):
            if found.path.relative_to(self.models_dir).parts[0] != PULLED:
                yield found
        for place in self.places:
            yield from found_in_place(place)

    def _describe(self, found: Found) -> StoredModel:
        if not os.path.exists(found.path):
            raise ModelNotFoundError(found.name)
        marks = file_marks(found.path)
        modified = found.modified
        if modified is None:
            modified = max(modified_ns for _, modified_ns in marks) / 1e9
        recipe = found.recipe or PLAIN
        facts = self._read_facts(found.path, marks)
        if recipe.template:
            thinks = thinking_of(recipe.template) is not None
            facts = dataclasses.replace(facts, has_template=True, thinks=thinks)
        return StoredModel(
            name=found.name,
            path=found.path,
            size=sum(size for size, _ in marks),
            modified=datetime.fromtimestamp(min(max(0.0, modified), _LATEST), timezone.utc),
            facts=facts,
            source=found.source,
            recipe=recipe,
        )

    def _read_facts(self, path: Path, marks: object) -> ModelFacts:
        key = (path, marks)
        with self._lock:  # several callers at once read a header once
            known = self._facts.get(key)
            if known is None:
                try:
                    known = read_facts(path, self.cache_dir)
                except ModelFileError as error:
                    known = error
                except (
                    Exception
                ) as error:  # one bad file must not keep the others from being listed
                    logger.exception("reading the header of %s failed", path)
                    known = ModelFileError(
                        f"{path.name}: its header holds what cannot be understood ({type(error).__name__})"
                    )
                self._facts[key] = known
        if isinstance(known, ModelFileError):
            raise ModelFileError(known.message)
        return known


class _Names:
    """One look at all places: what is listed, and what each name means."""

    def __init__(self, scanned: Iterable[Found]) -> None:
        self.until = time.monotonic() + _FRESH_SECONDS
        self.listed: list[Found] = []
        self.by_name: dict[str, Found] = {}
        self._by_stem: dict[str, list[Found]] = {}
        further: list[tuple[str, Found]] = []
        plain: dict[str, Found] = {}  # real path -> the first that led there
        for found in scanned:
            names = [name for name in (found.name, *found.also) if name.isprintable()]
            real = os.path.realpath(found.path)
            first = plain.get(real) if found.recipe is None else None
            if first is not None:  # one file, seen from two places
                further += [(name, first) for name in names]
                continue
            free = [name for name in names if name_key(name) not in self.by_name]
            if not free:
                continue
            if free[0] != found.name:
                found = dataclasses.replace(found, name=free[0])
            if found.recipe is None:
                plain[real] = found
                self._by_stem.setdefault(model_stem(found.path).casefold(), []).append(found)
            self.listed.append(found)
            self.by_name[name_key(found.name)] = found
            further += [(name, found) for name in names]
        for name, found in further:
            self.by_name.setdefault(name_key(name), found)

    def find(self, name: str) -> Found | None:
        if (found := self.by_name.get(name_key(name))) is not None:
            return found
        part = shard_name(f"{name}.gguf")
        same_stem = self._by_stem.get((part.stem if part else name).casefold(), [])
        return same_stem[0] if len(same_stem) == 1 else None


def file_name(path: Path) -> str:
    """The name, with its tag, of a file that the settings name by its path."""
    return full_name(model_stem(path).replace(":", "-"))


def _owner(found: Found) -> str:
    return _OWNERS.get(found.source, "a folder of yours")
