"""NumPy decoders: equal, bit for bit, with the public package's (random quant blocks each run)."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from emberd.errors import ModelFileError
from emberd.gguf.dequant import DECODED_TYPES, QUANT_TYPES, dequantize, quant_type, row_nbytes
from emberd.gguf.loaded import loaded_rows, loaded_type
from emberd.gguf.reader import GGUFFile, TensorInfo
from tiny_gguf import random_rows

TYPES = pytest.mark.parametrize("kind", QUANT_TYPES, ids=lambda kind: kind.name)
OF_THE_PACKAGE = pytest.mark.parametrize(
    "kind",
    [
        kind for kind in QUANT_TYPES if kind != GGMLQuantizationType.Q8_K
    ],  # it has no decoder of that
    ids=lambda kind: kind.name,
)
SUPPORTED = """F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ4_NL IQ4_XS MXFP4
IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0""".split()


def assert_same_bits(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    assert ours.dtype == np.float32 and ours.shape == theirs.shape
    different = np.argwhere(ours.view(np.uint32) != theirs.view(np.uint32))
    # A NaN has many spellings; that it is one is all that is wanted.
    different = [at for at in different if not np.isnan(ours[tuple(at)] + theirs[tuple(at)])]
    assert not different, f"{len(different)} differ, first at {different[0]}"


def test_supported_types_are_those_of_the_documentation() -> None:
    assert [kind.name for kind in QUANT_TYPES] == SUPPORTED


@OF_THE_PACKAGE
def test_random_weights_decode_as_the_public_package_does(
    kind: GGMLQuantizationType, rng: np.random.Generator
) -> None:
    raw = random_rows(rng, 37, 768, kind, std=0.1)
    ours = dequantize(raw, kind)
    assert ours.shape == (37, 768)
    assert 0.05 < ours.std() < 0.2
    assert_same_bits(ours, gguf.quants.dequantize(raw, kind))


@OF_THE_PACKAGE
def test_any_bytes_decode_as_the_public_package_does(
    kind: GGMLQuantizationType, rng: np.random.Generator
) -> None:
    """Scales that are infinite, no number, negative or subnormal are decoded, not warned about."""
    raw = rng.integers(0, 256, (300, row_nbytes(kind, 1024)), dtype=np.uint8)
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(raw, kind)
    assert_same_bits(dequantize(raw, kind), theirs)


@TYPES
def test_rows_may_be_a_view_with_gaps_and_none_at_all(
    kind: GGMLQuantizationType, rng: np.random.Generator
) -> None:
    raw = random_rows(rng, 8, 512, kind)
    whole = dequantize(raw, kind)
    assert_same_bits(dequantize(raw[::3], kind), whole[::3])
    assert dequantize(raw[:0], kind).shape == (0, 512)


def test_q4_0_by_hand() -> None:
    raw = np.zeros((1, 18), np.uint8)
    raw[0, :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    raw[0, 2] = 0x9F  # weight 0: 15, weight 16: 9
    weights = dequantize(raw, GGMLQuantizationType.Q4_0)[0]
    assert weights[0] == 3.5 and weights[16] == 0.5 and weights[1] == -4.0


def test_q8_k_by_its_definition(rng: np.random.Generator) -> None:
    raw = rng.integers(0, 256, (30, 3 * 292), dtype=np.uint8)
    blocks = raw.reshape(-1, 292)
    with np.errstate(all="ignore"):
        wanted = blocks[:, :4].copy().view("<f4") * blocks[:, 4:260].view(np.int8).astype(
            np.float32
        )
    assert_same_bits(dequantize(raw, GGMLQuantizationType.Q8_K), wanted.reshape(30, -1))


def test_mxfp4_by_hand() -> None:
    raw = np.zeros((1, 17), np.uint8)
    raw[0, 0] = 127  # 2 ** -1, and codes are twice the 4-bit floats
    raw[0, 1] = 0xA7  # weight 0: 6.0, weight 16: -1.0
    weights = dequantize(raw, GGMLQuantizationType.MXFP4)[0]
    assert weights[0] == 6.0 and weights[16] == -1.0 and weights[1] == 0.0


def test_unsupported_type_lists_the_supported_ones() -> None:
    with pytest.raises(ModelFileError, match=r"Q8_1 is not supported; .*F32, F16, .*IQ4_NL"):
        quant_type(GGMLQuantizationType.Q8_1)


@pytest.mark.parametrize("kind", sorted(DECODED_TYPES), ids=lambda kind: kind.name)
def test_what_no_kernel_reads_is_loaded_as_q8_0(
    kind: GGMLQuantizationType, rng: np.random.Generator
) -> None:
    raw = random_rows(rng, 8, 512, kind)
    made = loaded_rows(raw, kind)
    assert loaded_type(kind) == GGMLQuantizationType.Q8_0
    assert made.shape == (8, row_nbytes(GGMLQuantizationType.Q8_0, 512))
    exact = dequantize(raw, kind)
    error = np.abs(dequantize(made, GGMLQuantizationType.Q8_0) - exact).reshape(-1, 32).max(axis=1)
    # Half a step of 1 / 127, and what rounding the scale to f16 gives.
    assert (error <= np.abs(exact).reshape(-1, 32).max(axis=1) * (0.5 / 127 + 2**-11)).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", sorted(DECODED_TYPES), ids=lambda kind: kind.name)
def test_any_bytes_are_loaded_without_a_warning(
    kind: GGMLQuantizationType, rng: np.random.Generator
) -> None:
    raw = rng.integers(0, 256, (300, row_nbytes(kind, 512)), dtype=np.uint8)
    assert loaded_rows(raw, kind).shape[0] == 300


def test_types_with_kernels_are_loaded_as_they_are(rng: np.random.Generator) -> None:
    for kind in QUANT_TYPES.keys() - DECODED_TYPES:
        raw = random_rows(rng, 2, 512, kind)
        assert loaded_type(kind) == kind and loaded_rows(raw, kind) is raw


def test_rows_that_are_not_whole_quant_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="33 bytes a row"):
        dequantize(np.zeros((2, 33), np.uint8), GGMLQuantizationType.Q8_0)


@pytest.mark.model
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path", "qwen_path"])
def test_real_tensors_decode_as_the_public_package_does(
    model: str, request: pytest.FixtureRequest
) -> None:
    """One tensor of each type and file, its first rows."""
    with GGUFFile(request.getfixturevalue(model)) as file:
        one_each: dict[GGMLQuantizationType, TensorInfo] = {}
        for info in file.tensors.values():
            one_each.setdefault(info.type, info)
        assert len(one_each) >= 3
        for kind, info in one_each.items():
            raw = file.rows(info)[:64]
            assert_same_bits(dequantize(raw, kind), gguf.quants.dequantize(raw, kind))
