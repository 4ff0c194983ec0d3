"""Facts about a model file that lists show, read from its header once and kept in the cache folder.

A file counts as unchanged while its path, size and time of change are the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import ModelFileError, NotSupportedError
from ..gguf.encoder import EncoderFile, EncoderSpec, Pooling, pooling_of
from ..gguf.loaded import loaded_nbytes, loading_note
from ..gguf.reader import GGUFFile
from ..gguf.shards import model_files
from ..gguf.spec import ModelFile, describe, open_any
from ..text.fill import fill_tokens
from ..text.reasoning import thinking_of
from ..text.vocabulary import Vocabulary

Capability = Literal["completion", "tools", "insert", "thinking", "embedding"]

_VERSION = 10  # part of the cache key: a change of ModelFacts makes older entries unknown
_SAMPLE_BYTES = 64 * 1024
_SAMPLES = 64
_HINTS: dict[str, tuple[str, float, float]] = {  # field of SamplingParams: key, least, most
    "temperature": ("general.sampling.temp", 0, 10),
    "top_k": ("general.sampling.top_k", 0, 1 << 30),
    "top_p": ("general.sampling.top_p", 0, 1),
    "min_p": ("general.sampling.min_p", 0, 1),
    "repetition_penalty": ("general.sampling.penalty_repeat", 0.01, 10),
    "penalty_window": ("general.sampling.penalty_last_n", -1, 1 << 30),
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a header tells. Sizes are counts; `digest` is 64 hex digits.

    The digest identifies the content by the file's size and 64 samples of 64 KiB spread over it. It is not
    the SHA-256 of the whole file, which takes seconds for each gigabyte.
    """

    digest: str
    architecture: str
    num_parameters: int
    weight_bytes: int  # of all tensors as a GPU is given them
    kv_values: int  # of one token: keys and values of all layers; 0: an encoder
    head_dim: int  # 0: an encoder
    position_values: int  # of one place in a context: float32 values of cos and sin
    step_values: int  # of one token: float32 values that a step's activations take, about
    cpu_step_values: int  # of one token: what a step's arrays take on the CPU device
    cpu_position_values: (
        int  # of one place in a context there: of one layer, its keys and values too
    )
    parameter_size: str  # "7.6B"
    quantization: str  # "Q4_K_M"
    loading_note: str  # of tensor types that are not computed with as they are; often empty
    context_length: int  # trained
    embedding_length: int
    vocab_size: int
    has_template: (
        bool  # a chat template; with one, tools can be used, by a prompt of ours if need be
    )
    thinks: bool
    fills: bool  # it has tokens to fill in the middle
    is_encoder: bool  # makes embeddings only
    pooling: Pooling | None  # how the file says embeddings are made; None: it is not for that

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """In Ollama's own words only: the list is a closed one in some clients (OL-33)."""
        generates = not self.is_encoder
        words: dict[Capability, bool] = {
            "completion": generates,
            "tools": generates and self.has_template,
            "insert": generates and self.fills,
            "thinking": generates and self.thinks,
            "embedding": self.pooling is not None,
        }
        return tuple(word for word, has in words.items() if has)


def read_facts(path: Path, cache_dir: Path) -> ModelFacts:
    """Facts of one file. Raises ModelFileError with the file's fault."""
    key = f"{_VERSION}\0{path}\0{file_marks(path)}"
    name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    cached = cache_dir / "models" / f"{name}.json"
    facts = _load(cached)
    if facts is None:
        facts = _read(path)
        _save(cached, facts)
    return facts


def file_marks(path: Path) -> tuple[tuple[int, int], ...]:
    """Size and time of change of the model's files, one pair a part. Raises ModelFileError."""
    try:
        statuses = [file.stat() for file in model_files(path)]
    except OSError as error:
        raise ModelFileError(f"{path.name}: cannot be read: {error.strerror}") from None
    return tuple((status.st_size, status.st_mtime_ns) for status in statuses)


def sampling_hints(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Fields of SamplingParams that a file recommends; values that make no sense are left out."""
    hints = {}
    for name, (key, least, most) in _HINTS.items():
        value = metadata.get(key)
        if isinstance(value, int | float) and least <= value <= most:
            hints[name] = value
    return hints


def content_digest(path: Path) -> str:
    """See ModelFacts.digest."""
    files = [(file, file.stat().st_size) for file in model_files(path)]
    digest = hashlib.sha256("+".join(str(size) for _, size in files).encode())
    for file, size in files:
        stride = max(_SAMPLE_BYTES, (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
        with file.open("rb", buffering=0) as opened:
            for offset in range(0, size, stride):
                opened.seek(offset)
                digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def size_label(num_parameters: int) -> str:
    """ "134.5M" from 134,515,008."""
    for unit, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if num_parameters >= unit:
            return f"{num_parameters / unit:.1f}{letter}".replace(".0", "")
    return str(num_parameters)


def _read(path: Path) -> ModelFacts:
    model = open_any(path)
    try:
        _check_vocabulary(model.file)
        description = describe(model)
        template = model.file.metadata.get("tokenizer.chat_template")
        return ModelFacts(
            digest=content_digest(path),
            architecture=model.spec.architecture,
            num_parameters=description.num_parameters,
            weight_bytes=sum(map(loaded_nbytes, model.file.tensors.values())),
            kv_values=_kv_values(model),
            head_dim=0 if _encodes(model) else model.spec.head_dim,
            position_values=_position_values(model),
            step_values=_step_values(model),
            cpu_step_values=_cpu_step_values(model),
            cpu_position_values=_cpu_position_values(model),
            parameter_size=size_label(description.num_parameters),
            quantization=description.quantization,
            loading_note=loading_note(model.file.tensors.values()),
            context_length=model.spec.context_length,
            embedding_length=model.spec.hidden_size,
            vocab_size=model.spec.vocab_size,
            has_template=isinstance(template, str),
            fills=fill_tokens(model.file.metadata) is not None,
            thinks=isinstance(template, str) and thinking_of(template) is not None,
            is_encoder=_encodes(model),
            pooling=pooling_of(model.file),
        )
    finally:
        model.close()


def _check_vocabulary(file: GGUFFile) -> None:
    """What text needs is looked at here too, so that a file which cannot be served is not listed."""
    try:
        Vocabulary.from_metadata(file.metadata)
    except (ModelFileError, NotSupportedError) as error:
        raise ModelFileError(f"{file.name}: {error.message}") from None


def _encodes(model: ModelFile | EncoderFile) -> bool:
    return isinstance(model, EncoderFile) or not model.spec.causal


def _kv_values(model: ModelFile | EncoderFile) -> int:
    if isinstance(model, EncoderFile) or not model.spec.causal:
        return 0
    spec = model.spec
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim


def _position_values(model: ModelFile | EncoderFile) -> int:
    if isinstance(model, EncoderFile):
        return 0
    tables = {(layer.rope_base, layer.rope_scale) for layer in model.spec.layers}
    return len(tables) * model.spec.rope_dim


def _step_values(model: ModelFile | EncoderFile) -> int:
    """Residual and norms; q, k, v and what attention gives; gate, up and their product, which is kept as int8 too."""
    spec = model.spec
    heads = spec.num_heads * spec.head_dim
    kv = heads if isinstance(spec, EncoderSpec) else spec.num_kv_heads * spec.head_dim
    floats = 3 * spec.hidden_size + 3 * heads + 3 * kv + 3 * spec.ffn_size
    int8 = 2 * spec.hidden_size + heads + spec.ffn_size
    return floats + int8 // 3


def _cpu_step_values(model: ModelFile | EncoderFile) -> int:
    """As reference/estimate.py counts them."""
    spec = model.spec
    if isinstance(spec, EncoderSpec):
        return 7 * spec.hidden_size + 2 * spec.ffn_size
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return 4 * spec.hidden_size + 2 * (heads + 2 * kv) + heads + 3 * spec.ffn_size


def _cpu_position_values(model: ModelFile | EncoderFile) -> int:
    if isinstance(model, EncoderFile) or not model.spec.causal:
        return _position_values(model)
    return _position_values(model) + 2 * model.spec.num_kv_heads * model.spec.head_dim


def _load(cached: Path) -> ModelFacts | None:
    try:
        values: Any = json.loads(cached.read_bytes())
        return ModelFacts(**values)
    except (OSError, ValueError, TypeError):
        return None


def _save(cached: Path, facts: ModelFacts) -> None:
    """Written whole or not at all; a cache that cannot be written only costs time."""
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=cached.parent)
        with os.fdopen(descriptor, "w") as file:
            json.dump(dataclasses.asdict(facts), file)
        os.replace(temporary, cached)
    except OSError:
        return
