"""Found models: a name, the file behind it, and where it lies. No file is opened here.

Folders of GGUF files, and how files of a hub's repository are told apart by their quantization.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..gguf.shards import model_stem, shard_name
from .names import DEFAULT_TAG
from .recipe import Recipe

logger = logging.getLogger(__name__)

MAX_FOLDERS = 3  # NAME may be as deep as hf.co/owner/name
HUB_HOSTS = ("hf.co", "huggingface.co")
_LABEL = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d(?:_\w+?)?|T?Q\d_\d|BF16|FP?16|FP?32|MXFP4\w*))(?=[-.]|$)",
    re.IGNORECASE,
)
PREFERRED = (
    *("Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "MXFP4"),
    *("Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0"),
    *("Q3_K_L", "Q3_K_M", "Q3_K_S", "F16", "BF16", "F32", "Q2_K"),
)
"""Which quantization is meant where none is said: Ollama's choice first, then what is near it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A model that lies somewhere."""

    name: str  # with its tag, as it is listed
    path: Path  # the file; of a split model its first part
    source: str  # folder, pulled, or a place's name
    also: tuple[str, ...] = ()  # further full names that mean it
    recipe: Recipe | None = None
    modified: float | None = None  # seconds; None: the file's own time


def is_projector(file_name: str) -> bool:
    """A file that turns images into embeddings for a model beside it."""
    return "mmproj" in file_name.rpartition("/")[2].lower()


def quant_label(file_name: str) -> str | None:
    """`Q4_K_M` from `name-q4_k_m.gguf` or `name.Q4_K_M-00001-of-00002.gguf`."""
    labels = _LABEL.findall(model_stem(Path(file_name)))
    if not labels:
        return None
    label: str = labels[-1].upper()
    return {"FP16": "F16", "FP32": "F32"}.get(label, label)


def preferred(labels: Iterable[str]) -> str:
    """Of the labels of one repository, the one meant where none is said."""
    ranks = {label: rank for rank, label in enumerate(PREFERRED)}
    return min(labels, key=lambda label: (ranks.get(label.removeprefix("UD-"), len(ranks)), label))


def by_label(files: Sequence[Path]) -> dict[str, Path]:
    """Tags of a repository's models: the quantization, or the file's stem where that says none or is taken."""
    tags: dict[str, Path] = {}
    for path in files:
        label = quant_label(path.name)
        tag = label if label is not None and label not in tags else model_stem(path)
        tags.setdefault(tag, path)
    return tags


def found_in_repository(owner_and_name: str, files: Sequence[Path], source: str) -> Iterator[Found]:
    """Models of one repository of the hub. Projectors of images belong to others and are no models."""
    tags = by_label([path for path in files if not is_projector(path.name)])
    chosen = preferred(tags) if tags else None
    for tag, path in tags.items():
        meant = [tag, DEFAULT_TAG] if tag == chosen else [tag]
        first, *others = [
            f"{base}:{one}"
            for one in meant
            for base in (*(f"{host}/{owner_and_name}" for host in HUB_HOSTS), owner_and_name)
        ]
        yield Found(first, path, source, tuple(others))


def found_in_folder(folder: Path, source: str) -> Iterator[Found]:
    """`NAME.gguf` is NAME:latest, `NAME/TAG.gguf` is NAME:TAG; NAME may itself hold folders."""
    for path in sorted(gguf_files(folder, MAX_FOLDERS)):
        parts, stem = path.relative_to(folder).parent, model_stem(path)
        name = f"{parts.as_posix()}:{stem}" if parts.parts else f"{stem}:{DEFAULT_TAG}"
        yield Found(name, path, source)


def gguf_files(folder: Path, depth: int) -> Iterator[Path]:
    """Files below `folder`, of split models the first part that is there. Unreadable folders are empty ones."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    stems = set()
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if set(entry.name) & set(":\\") or not entry.name.isprintable():
            if entry.name.lower().endswith(".gguf"):
                log_left_out(
                    entry.path,
                    f"{entry.name!a}: ':', '\\' and what cannot be printed have no place in a name; rename it",
                )
            continue
        if entry.name.lower().endswith(".gguf") and os.path.isfile(entry.path):
            shard = shard_name(entry.name)
            if shard is not None:
                if (shard.stem, shard.count) in stems:
                    continue
                stems.add((shard.stem, shard.count))
            yield Path(entry.path)
        elif depth and os.path.isdir(entry.path):
            yield from gguf_files(Path(entry.path), depth - 1)


@lru_cache(maxsize=1024)  # said once a file, not once a listing
def log_left_out(_path: str, reason: str, level: int = logging.WARNING) -> None:
    logger.log(level, "model left out: %s", reason)
