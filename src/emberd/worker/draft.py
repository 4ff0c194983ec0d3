"""The draft of a model: loaded beside it on the same device, with a KV cache for as many tokens.

Of the memory for KV caches model and draft get shares as their tokens take. Imported by process.py alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from emberd.engine.draft_model import DraftModel
from emberd.errors import ModelFileError, ModelLoadError
from emberd.estimate import MemoryEstimate, MemoryQuestion
from emberd.gguf.encoder import is_encoder
from emberd.gguf.reader import GGUFFile
from emberd.protocol import Runner, WorkerInfo, WorkerOptions

Estimate = Callable[[MemoryQuestion], MemoryEstimate]


@dataclass(frozen=True, slots=True)
class Parts:
    """The options of a model and those of its draft, whose KV memory is not known yet; what the draft takes."""

    model: WorkerOptions
    draft: WorkerOptions
    made: MemoryEstimate
    num_tokens: int  # ids below it mean the same to both

    def check(self) -> None:
        """Ahead of the load of either. Raises ModelLoadError for a draft that the device cannot run with any memory."""
        if self.made.refusal and not self.made.weight_bytes:
            raise ModelLoadError(f"--draft: {self.made.refusal}")

    def draft_kv_bytes(self, num_tokens: int, kind: str) -> int:
        """Of a KV cache of that type that holds so many tokens."""
        return num_tokens * self.made.kv_token_bytes.get(kind, 0)

    def draft_options(self, context_length: int, num_tokens: int, kind: str) -> WorkerOptions:
        """Those of the draft beside a model that serves such a context from a KV cache of that type and size."""
        return replace(
            self.draft,
            context_length=context_length,
            kv_memory=self.draft_kv_bytes(num_tokens, kind),
            kv_type="q8_0" if kind == "q8_0" else "f16",
        )


def parted(options: WorkerOptions, estimate: Estimate) -> Parts:
    """Raises ModelLoadError where the draft has another vocabulary, ModelFileError for either file."""
    assert options.draft_path is not None
    num_tokens = _shared_tokens(Path(options.model_path), Path(options.draft_path))
    model = replace(options, draft_path=None)
    draft = replace(
        model,
        model_path=options.draft_path,
        rope_scaling=None,
        kv_limit=None,
        kv_ram=0,
        kv_disk=0,
        speculate="off",
        verify=False,  # wrong kernels would make wrong guesses, which are never told
    )
    own = estimate(MemoryQuestion(model))
    if options.device == "auto":  # which might be another device for the draft alone
        draft = replace(draft, device=own.device_kind)
    with _draft_named():
        made = estimate(MemoryQuestion(draft))
    if options.kv_type == "auto" and not (
        "q8_0" in own.kv_token_bytes and "q8_0" in made.kv_token_bytes
    ):
        model, draft = replace(model, kv_type="f16"), replace(draft, kv_type="f16")
    kind = "q8_0" if options.kv_type == "q8_0" else next(iter(own.kv_token_bytes))
    ours, drafts = own.kv_token_bytes[kind], made.kv_token_bytes[kind]
    context = min(options.context_length or own.default_context, made.max_context)
    model = replace(model, beside=made.fixed(context), kv_share=ours / (ours + drafts))
    return Parts(model, draft, made, num_tokens)


def estimate_with_draft(question: MemoryQuestion, estimate: Estimate) -> MemoryEstimate:
    """Of model and draft together, refused where the load of the draft would be. Raises as `parted` does."""
    parts = parted(question.options, estimate)
    made = estimate(replace(question, options=parts.model))
    tokens = made.kv_bytes // made.kv_token_bytes[made.kv_type] if made.kv_type else 0
    if not made.refusal:
        options = parts.draft_options(made.context_length, tokens, made.kv_type)
        with _draft_named():
            beside = estimate(MemoryQuestion(options))
        parts = replace(parts, made=replace(parts.made, refusal=beside.refusal))
    return made.with_draft(parts.made, parts.draft_kv_bytes(tokens, made.kv_type))


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """The runner of a draft, and the ids that it shares with its model."""

    runner: Runner
    num_tokens: int
    name: str

    def model(self) -> DraftModel:
        return DraftModel(self.runner, self.num_tokens)

    def told(self, info: WorkerInfo) -> WorkerInfo:
        """A model's info with what its draft takes."""
        own = self.runner.info()
        return replace(
            info,
            draft=self.name,
            draft_bytes=own.weight_bytes + own.kv_bytes + own.scratch_bytes,
            weight_bytes=info.weight_bytes + own.weight_bytes,
            kv_bytes=info.kv_bytes + own.kv_bytes,
            scratch_bytes=info.scratch_bytes + own.scratch_bytes,
            load_seconds=info.load_seconds + own.load_seconds,
        )


def load_draft(parts: Parts, runner: Runner) -> LoadedDraft:
    """Beside the model's runner, on its device. Raises ModelFileError, ModelLoadError."""
    info = runner.info()
    num_tokens = info.num_blocks * info.block_size
    options = parts.draft_options(info.context_length, num_tokens, info.kv_type)
    name = Path(options.model_path).name
    with _draft_named():
        return LoadedDraft(_load(options, runner), parts.num_tokens, name)


@contextmanager
def _draft_named() -> Iterator[None]:
    """What is wrong is wrong with the draft."""
    try:
        yield
    except ModelLoadError as error:
        raise ModelLoadError(f"--draft: {error.message}") from error


def _load(options: WorkerOptions, runner: Runner) -> Runner:
    if runner.info().device_kind == "gpu":
        from emberd.runtime.runner import GpuRunner

        assert isinstance(runner, GpuRunner)
        return GpuRunner.load(options, None, runner.kernels, lent=True)
    from emberd.reference.runner import CpuRunner

    return CpuRunner.load(options)


def _shared_tokens(model: Path, draft: Path) -> int:
    """How many ids mean the same to both: all of the smaller vocabulary. Raises ModelLoadError where they do not."""
    ours, theirs = _tokens(model), _tokens(draft)
    count = min(len(ours), len(theirs))
    place = next((place for place in range(count) if ours[place] != theirs[place]), None)
    if place is not None:
        raise ModelLoadError(
            f"--draft: {draft.name} has another vocabulary than {model.name}: token {place} is {theirs[place]!r}, "
            f"not {ours[place]!r}"
        )
    return count


def _tokens(path: Path) -> list[str]:
    with GGUFFile(path) as file:
        if is_encoder(file):
            raise ModelLoadError(f"--draft: {path.name} makes embeddings and no tokens")
        tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelFileError(f"{path.name}: 'tokenizer.ggml.tokens' is no list of tokens")
    return tokens
