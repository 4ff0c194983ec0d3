"""NumPy decoders: equal, bit for bit, with the public package's (random quant blocks each run)."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from emberd.errors import ModelFileError
from emberd.gguf.dequant import QUANT_TYPES, dequantize, quant_type, row_nbytes
from emberd.gguf.reader import GGUFFile, TensorInfo
from tiny_gguf import random_rows

TYPES = pytest.mark.parametrize("kind", QUANT_TYPES, ids=lambda kind: kind.name)
SUPPORTED = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K".split()


def assert_same_bits(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    assert ours.dtype == np.float32 and ours.shape == theirs.shape
    different = np.argwhere(ours.view(np.uint32) != theirs.view(np.uint32))
    # A NaN has many spellings; that it is one is all that is wanted.
    different = [at for at in different if not np.isnan(ours[tuple(at)] + theirs[tuple(at)])]
    assert not different, f"{len(different)} differ, first at {different[0]}"


def test_supported_types_are_those_of_the_documentation() -> None:
    assert [kind.name for kind in QUANT_TYPES] == SUPPORTED


@TYPES
def test_random_weights_decode_as_the_public_package_does(
    kind: GGMLQuantizationType, rng: np.random.Generator
) -> None:
    raw = random_rows(rng, 37, 768, kind, std=0.1)
    ours = dequantize(raw, kind)
    assert ours.shape == (37, 768)
    assert 0.05 < ours.std() < 0.2
    assert_same_bits(ours, gguf.quants.dequantize(raw, kind))


@TYPES
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


def test_unsupported_type_lists_the_supported_ones() -> None:
    with pytest.raises(ModelFileError, match=r"IQ4_NL is not supported; .*F32, F16, .*Q6_K"):
        quant_type(GGMLQuantizationType.IQ4_NL)


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
