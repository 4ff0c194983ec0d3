"""What a load takes on a GPU, told without loading: the footprint, the KV cache and the device's limits together."""

from __future__ import annotations

from dataclasses import replace

from ..errors import DeviceError, HeadsError, ModelLoadError
from ..estimate import LargestMatrix, MemoryEstimate, MemoryQuestion
from ..gguf.encoder import EncoderFile
from ..gguf.extend import extended
from ..gguf.model import ModelFile
from ..gguf.spec import open_any
from ..hardware import DEVICE_SHARE, gpu_tier
from ..protocol import WorkerOptions
from . import kv_cache
from .counting import CountingDevice
from .device import AdapterInfo
from .device_memory import device_memory
from .footprint import Footprint, decoder_footprint, encoder_footprint, fitted, lowered
from .kv_cache import BLOCK_SIZE
from .kv_size import KVSize, default_context, first_kind, kv_types, size_kv
from .text_runner import encoder_sizes


def estimate(adapter: AdapterInfo, question: MemoryQuestion) -> MemoryEstimate:
    """Reads the file's header and small vectors. Raises ModelFileError, DeviceError for what no size cures; HeadsError
    where "auto" would be another device."""
    model = open_any(question.options.model_path)
    try:
        if isinstance(model, EncoderFile) or not model.spec.causal:
            return _encoder(adapter, model, question)
        return _decoder(adapter, model, question)
    finally:
        model.close()


def _decoder(adapter: AdapterInfo, model: ModelFile, question: MemoryQuestion) -> MemoryEstimate:
    options, device = question.options, CountingDevice(adapter)
    trained = model.spec.context_length
    model = extended(model, options.context_length, options.rope_scaling)
    spec = model.spec
    options = fitted(device, spec, options)
    try:
        footprint, fault = decoder_footprint(adapter, model, options), ""
    except DeviceError as error:  # one binding cannot hold a part: no context cures that
        footprint, fault = _nothing(model), _fault(error, options)
    memory, allowed = _memory(adapter, question)
    default = default_context(adapter, memory, spec, options)
    wanted = min(options.context_length or default, spec.context_length)
    if options.kv_limit is None and question.memory is not None:
        options = replace(
            options, kv_limit=question.memory - footprint.fixed(wanted) - options.beside
        )
    refusal = fault
    try:
        size = size_kv(adapter, device.max_binding_bytes, memory, spec, footprint, options)
    except ModelLoadError as error:
        size, refusal = KVSize(first_kind(spec, options), 0, 0), fault or error.message
    if fault:
        size = KVSize(size.kind, 0, 0)
    block_bytes = {kind: kv_cache.bytes_per_block(spec, kind) for kind in kv_types(spec)}
    most = {
        kind: 0 if fault else kv_cache.max_blocks_per_binding(device.max_binding_bytes, spec, kind)
        for kind in block_bytes
    }
    made = _made(adapter, footprint, memory, allowed, device.max_binding_bytes)
    return replace(
        made,
        kv_token_bytes={kind: size // BLOCK_SIZE for kind, size in block_bytes.items()},
        kv_binding_tokens={kind: count * BLOCK_SIZE for kind, count in most.items()},
        trained_context=trained,
        max_context=spec.context_length,
        default_context=default,
        block_size=BLOCK_SIZE,
        kv_type=size.kind,
        context_length=size.context_length,
        kv_bytes=size.num_blocks * block_bytes[size.kind],
        refusal=refusal,
        step_tokens=max(options.max_batch_tokens, options.max_sequences),
        sequences=options.max_sequences,
        lowered=lowered(question.options, options, device.max_binding_bytes),
    )


def _fault(error: DeviceError, options: WorkerOptions) -> str:
    if isinstance(error, HeadsError) and options.device == "auto":
        raise error
    return error.message


def _nothing(model: ModelFile | EncoderFile) -> Footprint:
    """Of a model that cannot be loaded."""
    name, info = max(model.file.tensors.items(), key=lambda entry: entry[1].nbytes)
    return Footprint(LargestMatrix(name, info.nbytes, 1), 0, 0, 0, 0, 0)


def _encoder(
    adapter: AdapterInfo, model: EncoderFile | ModelFile, question: MemoryQuestion
) -> MemoryEstimate:
    options, device = question.options, CountingDevice(adapter)
    try:
        footprint, fault = encoder_footprint(adapter, model, options), ""
    except DeviceError as error:
        footprint, fault = _nothing(model), _fault(error, options)
    memory, allowed = _memory(adapter, question)
    made = _made(adapter, footprint, memory, allowed, device.max_binding_bytes)
    context, tokens = encoder_sizes(device, model, options)
    fitting = replace(options, max_batch_tokens=min(tokens, options.max_batch_tokens))
    return replace(
        made,
        trained_context=model.spec.context_length,
        max_context=model.spec.context_length,
        default_context=context,
        context_length=0 if fault else context,
        refusal=fault,
        step_tokens=tokens,
        sequences=tokens,
        lowered=lowered(options, fitting, device.max_binding_bytes),
    )


def _memory(adapter: AdapterInfo, question: MemoryQuestion) -> tuple[int | None, int | None]:
    """(what the device has, what the model may take)."""
    memory = device_memory(adapter)
    if question.memory is not None:
        return memory, question.memory
    return memory, None if memory is None else int(memory * DEVICE_SHARE)


def _made(
    adapter: AdapterInfo,
    footprint: Footprint,
    memory: int | None,
    allowed: int | None,
    max_binding_bytes: int,
) -> MemoryEstimate:
    """Without what differs from kind to kind of model."""
    return MemoryEstimate(
        device=adapter.name,
        device_kind="gpu",
        tier=gpu_tier(adapter.kind, memory),
        device_memory=memory,
        memory=allowed,
        max_binding_bytes=max_binding_bytes,
        largest=footprint.largest,
        weight_bytes=footprint.weights,
        scratch_bytes=footprint.base,
        scratch_token_bytes=footprint.per_token,
        optional_bytes=footprint.optional_base,
        optional_token_bytes=footprint.optional_per_token,
    )
