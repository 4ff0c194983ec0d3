"""The kernels of one model, checked on its own weights before it serves; what is wrong is left out where that helps.

Each kernel runs on a few rows of the file against NumPy, by the tiles and for the numbers of tokens that the runner
will use. What was right is kept in a file beside the measured tiles, for this adapter, driver, code and set of shaders,
so that a second load checks nothing. A kernel that is wrong three times over is done without (`Device.leave_out`), and
the rest is checked again with what stands in its place.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..gguf.encoder import EncoderFile
from ..gguf.model import ModelFile
from ..gguf.spec import open_any
from ..runtime import linear
from ..runtime.activations import is_fine
from ..runtime.kv_cache import KVType, q8_refusal
from ..runtime.plan import bakes
from ..runtime.weights import FLOAT_TYPES
from .ahead import compile_ahead
from .attention import check_attention, check_decode_attention
from .check import Check
from .encoder import check_beside_products
from .experts import check_experts
from .fused import check_ahead
from .kernels import check_activation, check_in_place, check_norms, check_post_norm
from .layer_norm import check_layer_norm, check_positions
from .linear import check_embedding, check_widen
from .load_bench import FEATURES, Kept, LoadBench, WatchedKernels, to_leave_out
from .pairs import check_pairs
from .rope import check_rope
from .sampling import check_sampler
from .steps import ONE_TOKEN, Steps
from .uses import check_uses, encoder_uses, model_uses

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """What checking a model's kernels found. `wrong`: what nothing stands in for; the device must not serve."""

    device: str
    num_checks: int
    num_run: int  # the others were right before
    left_out: tuple[str, ...]
    replaced: tuple[Check, ...]  # what was wrong, and is done without
    wrong: tuple[Check, ...]
    unchecked: tuple[Check, ...] = ()  # cases that failed themselves

    def __str__(self) -> str:
        """For the user."""
        if not self.unchecked:
            return self._verdict()
        why = self.unchecked[0].note
        return f"{self._verdict()}; {_names(self.unchecked)} could not be checked: {why}"

    def _verdict(self) -> str:
        if self.wrong:
            return f"{_named(self.wrong)} on {self.device}"
        if self.replaced:
            types = [f"{name} weights, read as Q8_0" for name in self.left_out]
            without = [FEATURES.get(*pair) for pair in zip(self.left_out, types, strict=True)]
            return f"{_named(self.replaced)} on {self.device}; served without {', '.join(map(str, without))}"
        num_made = self.num_checks - len(self.unchecked)
        return f"all {num_made} checks of kernels on {self.device} are right"


def check_at_load(
    kernels: WatchedKernels,
    path: str | Path,
    *,
    max_tokens: int,
    max_rows: int,
    cache_dir: Path | None,
    kv_types: Sequence[KVType] = ("f16",),
) -> Finding:
    """Check a model's kernels on their device, which does from then on without those that are wrong.

    `max_tokens` a step and `max_rows` with logits are the runner's; `kv_types` are those that its KV cache may have,
    of which a model that cannot have one is not checked for it. Raises ModelFileError for the file.
    """
    device, start = kernels.device, time.monotonic()
    kept = Kept.read(cache_dir, device)
    bench = LoadBench(kernels, kept)
    replaced: list[Check] = []
    steps = Steps(max_tokens, max_rows)

    def cases(made: LoadBench) -> Iterator[Check]:
        return _checks(made, path, steps, kv_types)

    while True:
        bench.before_running = partial(compile_ahead, kernels, kept, cases)
        checks = list(cases(bench))
        failed = {
            check: to_leave_out(check, checks, device.left_out)
            for check in checks
            if not check.passed and not check.unchecked
        }
        wrong = tuple(check for check, feature in failed.items() if feature is None)
        if wrong or not failed:
            break
        features = {feature for feature in failed.values() if feature is not None}
        logger.warning("%s on %s: trying without %s", _named(failed), device.name, features)
        device.leave_out(features)
        replaced += failed
    kept.write()
    left_out = tuple(sorted(device.left_out))
    unchecked = tuple(check for check in checks if check.unchecked)
    finding = Finding(
        device.name, len(checks), bench.num_run, left_out, tuple(replaced), wrong, unchecked
    )
    logger.log(
        logging.WARNING if wrong or replaced or unchecked else logging.INFO,
        "kernel check of %s: %s (%d run now, %.1f s)",
        *(Path(path).name, finding, bench.num_run, time.monotonic() - start),
    )
    return finding


def _checks(
    bench: LoadBench, path: str | Path, steps: Steps, kv_types: Sequence[KVType]
) -> Iterator[Check]:
    model = open_any(path)
    try:
        bench.scope = _digest(replace(model.spec, name=""))
        bench.fine = is_fine(model.spec.hidden_size)
        if isinstance(model, EncoderFile):
            most = max(steps.max_tokens, model.spec.context_length)
            yield from check_beside_products(bench, model)
            yield from check_uses(bench, model, encoder_uses(model, most))
            return
        if not model.spec.causal:  # whole texts a call, none of which is sampled from
            steps = Steps(max(steps.max_tokens, model.spec.context_length), 1)
            kv_types = ("f16",)
        kinds = [k for k in kv_types if k == "f16" or not q8_refusal(model.spec.head_dim)]
        yield from _beside_products(bench, model, steps)
        yield from check_uses(bench, model, model_uses(model, steps))
        yield from check_pairs(bench, model, steps)
        for kind in kinds:
            bench.kv_type = kind
            yield from check_rope(bench, model)
            yield from check_attention(bench, model, steps)
        if model.spec.causal and bakes(bench.device, 1):
            with bench.sizes_in_text():
                yield from _beside_products(bench, model, ONE_TOKEN)
                for kind in kinds:
                    bench.kv_type = kind
                    yield from check_decode_attention(bench, model, ONE_TOKEN)
    finally:
        model.close()


def _beside_products(bench: LoadBench, model: ModelFile, steps: Steps) -> Iterator[Check]:
    """All but products of matrices and attention."""
    yield from check_embedding(bench, model)
    if _reads_ahead(bench, model):
        yield check_ahead(bench, model)
    yield from check_norms(bench, model, steps)
    yield from check_layer_norm(bench, model)
    yield from check_positions(bench, model)
    yield from check_post_norm(bench, model)
    yield from check_activation(bench, model, steps)
    yield from check_in_place(bench, model)
    yield from check_widen(bench, model.spec.num_heads * model.spec.head_dim)
    yield from check_experts(bench, model, steps)
    if model.spec.causal:
        yield from check_sampler(bench, model.spec.vocab_size)


def _digest(spec: object) -> str:
    return hashlib.sha256(repr(spec).encode()).hexdigest()[:16]


def _reads_ahead(bench: LoadBench, model: ModelFile) -> bool:
    """Whether embedding rows go on as the first norm's input."""
    fused = linear.default_table(bench.device).matvec.fused
    first = model.tensors.layers[0]
    rms = first.attention_norm is not None and first.attention_norm_bias is None
    return fused and rms and model.tensors.token_embedding.type not in FLOAT_TYPES


def _named(checks: Iterable[Check]) -> str:
    """As `matvec (Q4_K), matmul (Q4_K) and 3 more are wrong`."""
    checks = list(checks)
    several = len({(check.kernel, check.type) for check in checks}) > 1
    return f"{_names(checks)} {'are' if several else 'is'} wrong"


def _names(checks: Iterable[Check]) -> str:
    names = list(dict.fromkeys(f"{check.kernel} ({check.type})" for check in checks))
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more
