"""Pulling from the Hugging Face hub: which files of a repository are meant, and where they are kept.

huggingface_hub knows the endpoint (HF_ENDPOINT), the token (HF_TOKEN, `hf auth login`) and whether to stay offline
(HF_HUB_OFFLINE); the bytes come through download.py, resumed and checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import httpx

from ..errors import BadRequestError, DownloadError, ModelFileError, ModelNotFoundError
from ..gguf.shards import shard_name
from .download import Download, fetch_bytes, open_client
from .found import HUB_HOSTS, by_label, is_projector, preferred
from .manifest import MAX_TEXT_BYTES
from .names import DEFAULT_TAG, check_new_name, is_digest, split_tag
from .recipe import Recipe, is_go_template
from .store import ModelStore

Json = dict[str, Any]
_INFO_SECONDS = 30.0
_TEXTS = {"system": "system", "params": "parameters", "template": "template"}
"""Files that a repository may have for Ollama's sake, and what they are in a recipe."""


class NoSuchRepositoryError(ModelNotFoundError):
    """The hub has none of that name, or hides it from us."""


@dataclass(frozen=True, slots=True)
class HubReference:
    name: str  # full, as it is called here afterwards
    repository: str  # owner/name
    tag: str
    with_host: bool


@dataclass(frozen=True, slots=True)
class _File:
    name: str  # its path in the repository
    size: int
    sha256: str | None  # None: a file that the hub keeps in git itself
    key: str  # of its content

    @property
    def base_name(self) -> str:
        return PurePosixPath(self.name).name


@dataclass(frozen=True, slots=True)
class _Repository:
    name: str
    revision: str
    files: tuple[_File, ...]
    endpoint: str
    headers: dict[str, str]

    def url(self, file: _File) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.name, file.name, revision=self.revision, endpoint=self.endpoint)


def hub_reference(name: str) -> HubReference | None:
    """`hf.co/owner/name[:quant]` or `owner/name[:quant]`; None: of no hub. Raises BadRequestError."""
    full = check_new_name(name)
    path, tag = split_tag(full)
    host, _, rest = path.partition("/")
    if host.lower() in HUB_HOSTS:
        if rest.count("/") != 1:
            raise BadRequestError("'model' is not hf.co/OWNER/REPOSITORY[:QUANT]", "model")
        return HubReference(full, rest, tag, True)
    return HubReference(full, path, tag, False) if path.count("/") == 1 else None


def pull_from_hub(store: ModelStore, wanted: HubReference) -> Iterator[Json]:
    """Lines of progress in Ollama's words; the last is `success`. Closing the iterator ends it.

    Raises ModelNotFoundError, ModelFileError, DownloadError.
    """
    yield {"status": "pulling manifest"}
    repository = _ask(wanted)
    files = _chosen(repository.files, wanted)
    path = _cached(store, wanted, repository, files)
    with open_client() as client:
        if path is None:
            targets = _targets(store, files)
            for file, target in zip(files, targets, strict=True):
                download = Download(
                    client,
                    repository.url(file),
                    target,
                    file.size,
                    file.sha256,
                    repository.headers,
                )
                for completed in download.run():
                    yield _progress(file, completed)
            path = targets[0]
        recipe = _recipe(client, repository)
    yield {"status": "verifying sha256 digest"}
    yield {"status": "writing manifest"}
    store.keep(wanted.name, path, recipe)
    store.check_servable(wanted.name)
    yield {"status": "success"}


def _ask(wanted: HubReference) -> _Repository:
    from huggingface_hub import HfApi, get_token  # takes its time
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    api = HfApi()
    try:
        info = api.model_info(wanted.repository, files_metadata=True, timeout=_INFO_SECONDS)
    except OfflineModeIsEnabled:
        raise DownloadError("HF_HUB_OFFLINE is set: the hub is not asked") from None
    except GatedRepoError:
        raise DownloadError(_gated(wanted)) from None
    except RepositoryNotFoundError:
        raise NoSuchRepositoryError(
            wanted.name, ": the hub has no such repository, or not for this token (HF_TOKEN)"
        ) from None
    except HfHubHTTPError as error:
        reply = getattr(error, "response", None)
        status = getattr(reply, "status_code", "no status")
        raise DownloadError(f"the hub answered {status} for '{wanted.repository}'") from None
    except Exception as error:  # of which HTTP library depends on huggingface_hub's version
        raise DownloadError(f"the hub cannot be asked: {type(error).__name__}") from error
    token = get_token()
    if info.gated and not token:
        raise DownloadError(_gated(wanted))
    if not info.sha:
        raise DownloadError(f"the hub tells no revision of '{wanted.repository}'")
    files = tuple(file for item in info.siblings or () if (file := _file(item)) is not None)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return _Repository(wanted.repository, info.sha, files, api.endpoint, headers)


def _file(item: Any) -> _File | None:
    name, size, sha256 = item.rfilename, item.size, getattr(item.lfs, "sha256", None)
    if not isinstance(name, str) or type(size) is not int or size < 0:
        return None
    if sha256 is not None and not is_digest(f"sha256:{sha256}"):
        return None
    return _File(name, size, sha256, sha256 or f"git-{item.blob_id}-{size}")


def _chosen(files: Sequence[_File], wanted: HubReference) -> list[_File]:
    """The file, or the parts, that the tag means."""
    by_name = {file.name: file for file in files if file.name.lower().endswith(".gguf")}
    first_parts = [
        Path(name)
        for name in sorted(by_name)
        if not is_projector(name)
        and ((part := shard_name(Path(name).name)) is None or part.number == 1)
    ]
    tags = by_label(first_parts)
    if not tags:
        raise ModelNotFoundError(wanted.name, f": '{wanted.repository}' has no GGUF file")
    tag = wanted.tag
    if tag.casefold() == DEFAULT_TAG:
        tag = preferred(tags)
    by_case = {known.casefold(): path for known, path in tags.items()}
    by_case |= {path.stem.casefold(): path for path in tags.values()} | by_case
    first = by_case.get(tag.removesuffix(".gguf").casefold())
    if first is None:
        raise ModelNotFoundError(
            wanted.name, f": '{wanted.repository}' has {', '.join(sorted(tags))[:500]}"
        )
    part = shard_name(first.name)
    if part is None:
        return [by_name[first.as_posix()]]
    names = [first.with_name(part.sibling(n)).as_posix() for n in range(1, part.count + 1)]
    if missing := [name for name in names if name not in by_name]:
        raise ModelFileError(f"'{wanted.repository}' lacks the part {missing[0]:.200}")
    return [by_name[name] for name in names]


def _cached(
    store: ModelStore, wanted: HubReference, repository: _Repository, files: Sequence[_File]
) -> Path | None:
    """The file in the Hugging Face cache, if that is a place and has all parts of this revision."""
    from huggingface_hub import try_to_load_from_cache

    if "huggingface" not in store.places:
        return None
    paths = [
        try_to_load_from_cache(wanted.repository, file.name, revision=repository.revision)
        for file in files
    ]
    for path, file in zip(paths, files, strict=True):
        if not isinstance(path, str) or Path(path).stat().st_size != file.size:
            return None
    return Path(str(paths[0]))


def _targets(store: ModelStore, files: Sequence[_File]) -> list[Path]:
    """By content: a single file among the blobs, parts under their own names in one folder."""
    if len(files) == 1 and (sha256 := files[0].sha256) is not None:
        return [store.blob(f"sha256:{sha256}", files[0].size)]
    key = hashlib.sha256("+".join(file.key for file in files).encode()).hexdigest()[:32]
    return [store.pulled.file(key, file.base_name) for file in files]


def _recipe(client: httpx.Client, repository: _Repository) -> Recipe:
    values: Json = {}
    for file in repository.files:
        field = _TEXTS.get(file.name)
        if field is None or file.size > MAX_TEXT_BYTES:
            continue
        try:
            raw = fetch_bytes(client, repository.url(file), file.size, repository.headers)
        except httpx.HTTPStatusError as error:
            raise DownloadError(
                f"the hub answered {error.response.status_code} for the file '{file.name}'"
            ) from None
        text = raw.decode("utf-8", "replace")
        if field == "parameters":
            try:
                values[field] = json.loads(text)
            except (ValueError, RecursionError):
                continue
        else:
            values["go_template" if field == "template" and is_go_template(text) else field] = text
    return Recipe.from_json(values)


def _progress(file: _File, completed: int) -> Json:
    line: Json = {"status": f"pulling {file.base_name}"}
    if file.sha256 is not None:
        line = {"status": f"pulling {file.sha256[:12]}", "digest": f"sha256:{file.sha256}"}
    return line | {"total": file.size, "completed": completed}


def _gated(wanted: HubReference) -> str:
    return f"'{wanted.repository}' is gated: accept its terms on the hub, and give a token of that account (HF_TOKEN)"
