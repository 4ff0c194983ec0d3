"""Which kernel and tile serves each product of a model at each number of tokens, and a case for each of them.

Products are those of the runners: matrices stacked as `runtime/model.py` stacks them, tiles of the whole matrix, on a
few of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from ..gguf.dequant import dequantize
from ..gguf.encoder import EncoderFile
from ..gguf.loaded import loaded_type
from ..gguf.model import LayerTensors, ModelFile
from ..gguf.reader import TensorInfo
from ..runtime import linear
from ..runtime.activations import FLOAT_UNIT, padded
from ..runtime.matmul import MatmulTile
from ..runtime.matvec import can_fuse_output
from ..runtime.plan import bakes
from ..runtime.products import Form, Product
from ..runtime.text_runner import MIN_TOKENS
from ..runtime.weights import WeightMatrix, matrix_columns
from .bench import Workbench
from .check import Check
from .fused import check_gate_up, check_output, check_pending
from .linear import MAX_ROWS, Role, check_product
from .steps import Steps, numbers_up_to

Biased = tuple[TensorInfo, TensorInfo | None]
Fusing = Literal["", "output", "gate_up"]


@dataclass(frozen=True, slots=True)
class Use:
    """Matrices of one type, one below the other, and what the forward pass does with their product."""

    matrices: tuple[TensorInfo, ...]
    max_tokens: int
    bias: TensorInfo | None = None
    accumulate: bool = False
    fusing: Fusing = ""  # with what it may be one dispatch
    ahead: bool = False  # its input's norm may be left to it
    given: bool = False  # so that it reads chosen rows
    min_tokens: int = 1
    row_unit: int = 1  # of which each matrix is made a multiple

    @property
    def rows(self) -> int:
        return sum(padded(info.shape[0], self.row_unit) for info in self.matrices)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for uses that the same kernels serve."""
        first, extras = self.matrices[0], (self.bias is not None, self.accumulate)
        return first.type, first.shape[1], self.rows, *extras, self.fusing, self.ahead


def model_uses(model: ModelFile, steps: Steps) -> list[Use]:
    """Each kind of product of a decoder, once; of one that runs whole texts, for calls as those of an encoder."""
    found: dict[tuple[Any, ...], Use] = {}
    for layer in model.tensors.layers:
        for use in _layer_uses(layer, steps.max_tokens):
            found.setdefault(use.key, use)
    if not model.spec.causal:
        return [
            replace(use, min_tokens=min(MIN_TOKENS, steps.max_tokens)) for use in found.values()
        ]
    tensors = model.tensors
    ahead = tensors.output_norm_bias is None
    output = Use((tensors.output,), steps.max_rows, tensors.output_bias, ahead=ahead, given=True)
    return [*found.values(), output]


def encoder_uses(model: EncoderFile, max_tokens: int) -> list[Use]:
    """Each kind of product of an encoder, once; its calls are of `max_tokens` and of powers of two up to there."""
    found: dict[tuple[Any, ...], Use] = {}
    for layer in model.tensors.layers:
        for parts in ((layer.q, layer.k, layer.v), (layer.o,), (layer.up,), (layer.down,)):
            pairs = [(part.weight, part.bias) for part in parts]
            unit = FLOAT_UNIT if layer.up in parts else 1
            for use in _side_by_side(pairs, max_tokens, False, unit):
                found.setdefault(use.key, replace(use, min_tokens=min(MIN_TOKENS, max_tokens)))
    return list(found.values())


def _layer_uses(layer: LayerTensors, tokens: int) -> Iterator[Use]:
    adds = layer.post_attention_norm is None
    rms = layer.attention_norm_bias is None  # a LayerNorm is not left to its reader
    qkv = ((layer.q, layer.q_bias), (layer.k, layer.k_bias), (layer.v, layer.v_bias))
    yield from _side_by_side(qkv, tokens, rms)
    yield _output(layer.o, layer.o_bias, tokens, adds, rms)
    if layer.router is not None:
        yield Use((layer.router,), tokens, layer.router_bias, ahead=True)
        if layer.shared is not None:
            yield Use((layer.shared.router,), tokens, ahead=True)
            yield from _gate_up((layer.shared.gate, None), (layer.shared.up, None), tokens, True)
            yield Use((layer.shared.down,), tokens)
        return
    up = (layer.up, layer.up_bias)
    if layer.gate is None:
        yield Use((layer.up,), tokens, layer.up_bias, ahead=rms, row_unit=FLOAT_UNIT)
    else:
        yield from _gate_up((layer.gate, layer.gate_bias), up, tokens, rms)
    yield _output(layer.down, layer.down_bias, tokens, adds, rms)


def _side_by_side(
    parts: Sequence[Biased], tokens: int, ahead: bool, row_unit: int = 1
) -> Iterator[Use]:
    for _, members in groupby(parts, key=lambda pair: pair[0].type):
        infos, biases = zip(*members, strict=True)
        yield Use(infos, tokens, biases[0], ahead=ahead, row_unit=row_unit)


def _output(matrix: TensorInfo, bias: TensorInfo | None, tokens: int, adds: bool, rms: bool) -> Use:
    fusing: Fusing = "output" if adds and rms and bias is None else ""
    return Use((matrix,), tokens, bias, accumulate=adds, fusing=fusing)


def _gate_up(gate: Biased, up: Biased, tokens: int, ahead: bool) -> Iterator[Use]:
    if gate[0].type == up[0].type and gate[1] is None:
        both = (gate[0], up[0])
        yield Use(both, tokens, fusing="gate_up", ahead=ahead, row_unit=FLOAT_UNIT)
    else:
        yield from _side_by_side((gate, up), tokens, ahead, FLOAT_UNIT)


def check_uses(
    bench: Workbench, model: ModelFile | EncoderFile, uses: Sequence[Use]
) -> Iterator[Check]:
    """Each use by every kernel that the rules may choose for it."""
    table = linear.default_table(bench.device)
    for case in _cases(bench, uses, table):
        yield from _check(bench, model, case)


def check_tuned(
    bench: Workbench, model: ModelFile, uses: Sequence[Use], table: linear.LinearTable
) -> Iterator[tuple[Product, Check]]:
    """Each measured tile of `table` in every kernel that it has a part in."""
    tuned = {*table.matvec.tuned, *table.matmul.tuned}
    for case in _cases(bench, uses, table):
        if case.product in tuned:
            for check in _check(bench, model, case):
                yield case.product, check


@dataclass(frozen=True, slots=True)
class _Case:
    """A use by one kernel: so many tokens in this form, by this tile, and whether its input's norm is left to it."""

    use: Use
    product: Product
    form: Form
    ahead: bool
    tile: linear.Tile
    tokens: int


def _cases(bench: Workbench, uses: Sequence[Use], table: linear.LinearTable) -> Iterator[_Case]:
    """One for each kernel."""
    for use in uses:
        info = use.matrices[0]
        kind = loaded_type(info.type, bench.device.left_out)
        part: Any = None  # of the matrix nothing but its sizes is read
        matrix = WeightMatrix(kind, use.rows, matrix_columns(kind, info.shape[1]), (part,))
        seen: set[tuple[Any, ...]] = set()
        for tokens in numbers_up_to(use.max_tokens):
            if tokens < use.min_tokens:
                continue
            for form, ahead in _forms(table, use, matrix, tokens):
                tile, group = _tile(table, form, matrix, tokens)
                if (form, ahead, tile, group) not in seen:
                    seen.add((form, ahead, tile, group))
                    product = Product.of(form, matrix, tokens)
                    yield _Case(use, product, form, ahead, tile, tokens)


def _forms(
    table: linear.LinearTable, use: Use, matrix: WeightMatrix, tokens: int
) -> Iterator[tuple[Form, bool]]:
    """Forms of the product, and whether its input's norm is left to it."""
    joint = use.fusing == "gate_up" and linear.can_fuse_gate_up(table, matrix, tokens)
    if tokens > table.matvec.tokens:
        yield "gate_up" if joint else "matmul", False
        return
    fusable = table.matvec.fused and matrix.is_quantized
    norms = (False, True) if use.ahead and fusable else (False,)
    if joint:
        yield from (("gate_up", ahead) for ahead in norms)
        return
    if use.fusing == "output" and can_fuse_output(table.matvec, matrix, tokens):
        yield "output", False
    yield from (("rows", ahead) for ahead in norms)


def _tile(
    table: linear.LinearTable, form: Form, matrix: WeightMatrix, tokens: int
) -> tuple[linear.Tile, int]:
    tile = table.tile_for(form, matrix, tokens)
    return tile, 0 if isinstance(tile, MatmulTile) else table.matvec.group_of(tokens)


def _check(bench: Workbench, model: ModelFile | EncoderFile, case: _Case) -> Iterator[Check]:
    """One comparison, and another where a step of one token has its kernels' params in their text."""
    use, form, tile, tokens = case.use, case.form, case.tile, case.tokens
    info, note = use.matrices[0], f", {form} {tile}"
    table = linear.table_of(bench.device, form, tile)
    if isinstance(tile, MatmulTile):
        tokens = min(tokens, tile.tokens + 5)
    raw = model.file.rows(info)[:MAX_ROWS]
    bias = None
    if use.bias is not None:
        bias = dequantize(model.file.rows(use.bias), use.bias.type).reshape(-1)

    def compared() -> Check:
        if form in ("rows", "matmul") and not case.ahead:
            role = Role(info, use.bias, use.accumulate)
            first = None if bias is None else bias[: len(raw)]
            return check_product(bench, role, raw, first, tokens, table, note)
        assert isinstance(model, ModelFile)  # an encoder's norms and activations stand alone
        if form == "output":
            return check_output(bench, model, info, tokens, table.matvec, note)
        if form == "gate_up":
            gate, up = use.matrices
            activation = model.spec.activation
            return check_gate_up(
                bench, model, gate, up, tokens, case.ahead, activation, table, note
            )
        return check_pending(bench, model, info, tokens, use.given, table, bias, note)

    yield compared()
    if bakes(bench.device, tokens):
        with bench.sizes_in_text():
            yield compared()
