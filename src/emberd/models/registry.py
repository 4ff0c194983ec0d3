"""Pulling from registries as Ollama's: a manifest, its layers by digest, and what of them is used.

Names are checked before anything is asked of a host, and everything a registry says is checked before it is used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from ..errors import BadRequestError, DownloadError, ModelFileError, ModelNotFoundError
from .download import Download, fetch_bytes, open_client
from .manifest import MAX_MANIFEST_BYTES, Layer, read_manifest, recipe_of
from .names import check_new_name, split_tag
from .ollama_store import NAMESPACE
from .store import ModelStore

Json = dict[str, Any]
ANY = "*"
_SCHEME = re.compile(r"(https?)://")
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*(:\d{1,5})?")
_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a model is asked for, and what it is called here afterwards."""

    name: str
    base: str  # URL of the host
    repository: str  # namespace/model
    tag: str

    def url(self, kind: str, which: str) -> str:
        return f"{self.base}/v2/{self.repository}/{kind}/{which}"


def without_scheme(name: str, insecure: bool) -> tuple[str | None, str]:
    """(http, https or None; the name). Raises BadRequestError for http that was not asked for by `insecure`."""
    match = _SCHEME.match(name)
    if match is None:
        return None, name
    if match[1] == "http" and not insecure:
        raise BadRequestError("'model': http:// needs 'insecure': true", "model")
    return match[1], name[match.end() :]


def reference(name: str, registries: Sequence[str], insecure: bool = False) -> Reference:
    """`model`, `namespace/model` or `host/namespace/model`, each maybe with a tag. Raises BadRequestError."""
    scheme, rest = without_scheme(name.strip(), insecure)
    full = check_new_name(rest)
    path, tag = split_tag(full)
    *before, model = path.split("/")
    home = registries[0]
    if len(before) < 2 and scheme is None:
        base = home if _SCHEME.match(home) else f"https://{home}"
        return Reference(full, base, "/".join([*(before or [NAMESPACE]), model]), tag)
    host, namespace = (before or [""])[0], (before or [""])[-1]
    is_host = _HOST.fullmatch(host) and ("." in host or ":" in host or host == "localhost")
    if len(before) != 2 or not is_host:
        raise BadRequestError("'model' is not HOST/NAMESPACE/MODEL:TAG", "model")
    known = {_SCHEME.sub("", entry): entry for entry in registries}
    if host not in known and ANY not in known:
        raise BadRequestError(
            f"'model': this daemon does not pull from {host}; EMBERD_REGISTRIES lists from where it does",
            "model",
        )
    entry = f"{scheme}://{host}" if scheme else known.get(host, host)
    base = entry if _SCHEME.match(entry) else f"https://{entry}"
    if host == _SCHEME.sub("", home):  # called as it would be without the host
        full = f"{model}:{tag}" if namespace == NAMESPACE else f"{namespace}/{model}:{tag}"
    return Reference(full, base, f"{namespace}/{model}", tag)


def pull_from_registry(store: ModelStore, wanted: Reference, insecure: bool) -> Iterator[Json]:
    """Lines of progress in Ollama's words; the last is `success`. Closing the iterator ends it.

    Raises ModelNotFoundError, ModelFileError, DownloadError.
    """
    yield {"status": "pulling manifest"}
    with open_client(verify=not insecure) as client:
        wanted, raw = _manifest(client, wanted, insecure)
        manifest = read_manifest(raw, wanted.name)
        target = store.blob(manifest.model.digest, manifest.model.size)
        download = Download(
            client,
            wanted.url("blobs", manifest.model.digest),
            target,
            manifest.model.size,
            manifest.model.digest.partition(":")[2],
        )
        for completed in download.run():
            yield _progress(manifest.model, completed)
        texts = {}
        for layer in manifest.texts:
            yield _progress(layer, 0)
            texts[layer] = _text(client, wanted, layer)
            yield _progress(layer, layer.size)
    yield {"status": "verifying sha256 digest"}
    recipe = recipe_of(manifest, texts.__getitem__)
    yield {"status": "writing manifest"}
    store.keep(wanted.name, target, recipe)
    store.check_servable(wanted.name)
    yield {"status": "success"}


def _manifest(client: httpx.Client, wanted: Reference, insecure: bool) -> tuple[Reference, bytes]:
    """The manifest, and from where it came: over plain HTTP where that is allowed and TLS is not there."""
    headers = {"accept": _MANIFEST_TYPE}
    try:
        raw = fetch_bytes(client, wanted.url("manifests", wanted.tag), MAX_MANIFEST_BYTES, headers)
        return wanted, raw
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status == 404:
            raise ModelNotFoundError(
                wanted.name, f": pull model manifest: {_shown(wanted)} has no such model"
            ) from None
        if status in (401, 403):
            raise DownloadError(
                f"{_shown(wanted)} wants a login for this model, which is not supported"
            ) from None
        raise DownloadError(f"{_shown(wanted)} answered {status} for the manifest") from None
    except DownloadError:
        if not insecure or not wanted.base.startswith("https://"):
            raise
        plain = Reference(
            wanted.name, "http" + wanted.base.removeprefix("https"), wanted.repository, wanted.tag
        )
        return _manifest(client, plain, insecure=False)


def _text(client: httpx.Client, wanted: Reference, layer: Layer) -> bytes:
    try:
        data = fetch_bytes(client, wanted.url("blobs", layer.digest), layer.size, {})
    except httpx.HTTPStatusError as error:
        raise DownloadError(
            f"{_shown(wanted)} answered {error.response.status_code} for the {layer.kind}"
        ) from None
    if len(data) != layer.size or f"sha256:{hashlib.sha256(data).hexdigest()}" != layer.digest:
        raise ModelFileError(f"{wanted.name}: its {layer.kind} is not what its record says")
    return data


def _progress(layer: Layer, completed: int) -> Json:
    short = layer.digest.partition(":")[2][:12]
    return {
        "status": f"pulling {short}",
        "digest": layer.digest,
        "total": layer.size,
        "completed": completed,
    }


def _shown(wanted: Reference) -> str:
    return _SCHEME.sub("", wanted.base)
