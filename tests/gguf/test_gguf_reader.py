"""Reader against the public `gguf` package, and against files that lie (K28)."""

from __future__ import annotations

import json
import os
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from emberd.errors import ModelFileError
from emberd.gguf.reader import GGUFFile
from emberd.gguf.spec import open_model
from tiny_gguf import random_model

U8, STRING, ARRAY, U64 = 0, 8, 9, 10
F32 = 0


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def tensor(name: str, dims: list[int], kind: int = F32, offset: int = 0) -> bytes:
    dims_bytes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + dims_bytes + struct.pack("<IQ", kind, offset)


def file_bytes(
    pairs: list[bytes],
    tensors: list[bytes],
    data: bytes = b"",
    *,
    version: int = 3,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


GOOD_PAIRS = [
    pair("general.architecture", STRING, text("llama")),
    pair("a.numbers", ARRAY, array(U8, 3, b"abc")),
    pair("a.words", ARRAY, array(STRING, 2, text("x") + text("yz"))),
    pair("a.nested", ARRAY, array(ARRAY, 1, array(U64, 1, bytes(8)))),
]
GOOD = file_bytes(GOOD_PAIRS, [tensor("t", [8, 2])], bytes(64))

HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "magic": (b"GGML" + GOOD[4:], "not a GGUF file"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS pointer"),
    "version 0": (file_bytes([], [], version=0), "version 0 is not supported"),
    "version 1": (file_bytes([], [], version=1), "version 1 is not supported"),
    "version 4": (file_bytes([], [], version=4), "version 4 is not supported"),
    "version 2^32-1": (file_bytes([], [], version=2**32 - 1), "is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "big-endian magic": (b"FUGG" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "metadata count": (file_bytes([], [], num_pairs=2**63), "metadata count"),
    "metadata count by one": (file_bytes(GOOD_PAIRS, [], num_pairs=5), "metadata key 4|count"),
    "tensor count": (file_bytes([], [], num_tensors=2**63), "tensor count"),
    "counts within limits": (file_bytes([], [], num_tensors=60000), "tensor count of 60000"),
    "key length": (file_bytes([struct.pack("<Q", 2**63)], [], num_pairs=1), "key 0|count"),
    "key empty": (file_bytes([pair("", U8, b"\0")], []), "key 0 is empty"),
    "key not UTF-8": (file_bytes([pair(b"\xff\xfe", U8, b"\0")], []), "not UTF-8"),
    "key twice": (file_bytes([pair("k", U8, b"\0")] * 2, []), "'k' appears twice"),
    "value type 13": (file_bytes([pair("k", 13, bytes(8))], []), "unknown value type 13"),
    "array type 13": (file_bytes([pair("k", ARRAY, array(13, 1))], []), "unknown value type 13"),
    "string length": (file_bytes([pair("k", STRING, struct.pack("<Q", 2**63))], []), "'k'"),
    "array of bytes": (file_bytes([pair("k", ARRAY, array(U8, 2**62))], []), "'k' needs"),
    "array of u64": (file_bytes([pair("k", ARRAY, array(U64, 2**61))], []), "'k' needs"),
    "array of strings": (file_bytes([pair("k", ARRAY, array(STRING, 2**62))], []), "strings"),
    "array of arrays": (file_bytes([pair("k", ARRAY, array(ARRAY, 2**62))], []), "inner arrays"),
    "strings beyond the end": (
        file_bytes([pair("k", ARRAY, array(STRING, 9, text("a")))], []),
        "'k'",
    ),
    "string length in array": (
        file_bytes([pair("k", ARRAY, array(STRING, 1, struct.pack("<Q", 2**63)))], []),
        "item 0 of metadata key 'k'",
    ),
    "nested 1000 deep": (
        file_bytes([pair("k", ARRAY, array(ARRAY, 1) * 1000)], []),
        "nests arrays more than 4 deep",
    ),
    "alignment 0": (file_bytes([pair("general.alignment", 4, struct.pack("<I", 0))], []), "is 0"),
    "alignment 3": (file_bytes([pair("general.alignment", 4, struct.pack("<I", 3))], []), "is 3"),
    "alignment 2^30": (
        file_bytes([pair("general.alignment", 4, struct.pack("<I", 2**30))], []),
        "power of two",
    ),
    "alignment text": (file_bytes([pair("general.alignment", STRING, text("32"))], []), "'32'"),
    "9 dimensions": (file_bytes([], [tensor("t", [1] * 9)], bytes(64)), "9 dimensions"),
    "2^32-1 dimensions": (
        file_bytes([], [text("t") + struct.pack("<I", 2**32 - 1) + bytes(32)], bytes(64)),
        "4294967295 dimensions",
    ),
    "no dimensions": (file_bytes([], [tensor("t", [])], bytes(64)), "0 dimensions|tensor count"),
    "dimension 0": (file_bytes([], [tensor("t", [8, 0])], bytes(64)), "dimension of 0"),
    "product of 2^64": (file_bytes([], [tensor("t", [2**32, 2**32])], bytes(64)), "needs bytes"),
    "product wraps to 8": (
        file_bytes([], [tensor("t", [2**61 + 1, 8])], bytes(64)),
        "needs bytes",
    ),
    "tensor type 200": (file_bytes([], [tensor("t", [8], kind=200)], bytes(64)), "type 200"),
    "tensor type 4, removed": (file_bytes([], [tensor("t", [8], kind=4)], bytes(64)), "type 4"),
    "row of half a quant block": (
        file_bytes([], [tensor("t", [48], kind=8)], bytes(64)),
        "not a multiple of the 32",
    ),
    "tensor name empty": (file_bytes([], [tensor("", [8])], bytes(64)), "name of tensor 0"),
    "tensor name long": (file_bytes([], [tensor("n" * 200, [8])], bytes(64)), "200 bytes long"),
    "tensor twice": (
        file_bytes([], [tensor("t", [8]), tensor("t", [8], offset=32)], bytes(64)),
        "'t' appears twice",
    ),
    "tensors overlap": (
        file_bytes([], [tensor("t", [16]), tensor("u", [8], offset=32)], bytes(64)),
        "'t' and 'u' overlap",
    ),
    "offset off the alignment": (
        file_bytes([], [tensor("t", [8], offset=4)], bytes(64)),
        "multiple of the alignment",
    ),
    "offset 2^64-32": (
        file_bytes([], [tensor("t", [8], offset=2**64 - 32)], bytes(64)),
        "needs bytes",
    ),
}


def refusal(path: Path) -> str:
    """The message with which `path` is refused, within 100 MB."""
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as caught:
            GGUFFile(path)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    return str(caught.value)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_header_is_refused_by_name(fault: str, tmp_path: Path) -> None:
    """K28."""
    content, pattern = HOSTILE[fault]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    message = refusal(path)
    assert message.startswith("bad.gguf: ")
    assert str(tmp_path) not in message
    assert len(message) < 400
    assert re.search(pattern, message), message


def test_good_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    """K28."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(GOOD)
    GGUFFile(path).close()
    for size in reversed(range(len(GOOD))):
        os.truncate(path, size)
        with pytest.raises(ModelFileError, match=r"^cut\.gguf: "):
            GGUFFile(path)


def test_changed_bytes_never_raise_anything_else(tmp_path: Path, rng: np.random.Generator) -> None:
    """K28: whatever a damaged header says, the file is refused or loads."""
    path = random_model(
        tmp_path / "ok.gguf", "gemma3", width=32, ffn=32, heads=2, kv_heads=1, head_dim=16
    )
    good = np.fromfile(path, dtype=np.uint8)
    # The vocabulary takes most of the header; what comes before and behind it is of more interest.
    start = path.read_bytes().index(b"token_embd.weight")
    places = np.concatenate([np.arange(900), np.arange(start - 400, start + 2000)])
    refused = 0
    for _ in range(400):
        bad = good.copy()
        where = rng.choice(places, size=rng.integers(1, 4))
        bad[where] = rng.choice([0, 1, 7, 8, 9, 13, 32, 127, 128, 255], size=len(where))
        bad.tofile(path)
        try:
            open_model(path).close()
        except ModelFileError as error:
            assert str(error).startswith("ok.gguf: ")
            refused += 1
    assert refused > 100


def test_announced_bytes_that_a_sparse_file_does_hold_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(file_bytes([pair("k", ARRAY, array(U8, 2**34))], [], num_pairs=1))
    os.truncate(path, 2**35)
    assert "header and metadata may take" in refusal(path)


def test_many_strings_of_a_sparse_file_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(file_bytes([pair("k", ARRAY, array(STRING, 2**30))], [], num_pairs=1))
    os.truncate(path, 2**35)
    assert "announces 1073741824 strings" in refusal(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path, tmp_path / "pipe.gguf", tmp_path / "none.gguf", tmp_path / "a\0b"):
        with pytest.raises(ModelFileError) as caught:
            GGUFFile(path)
        assert str(tmp_path.parent) not in str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_reads_as_the_public_package_does(
    version: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind in gguf.GGUFValueType:
        if kind in (gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING, gguf.GGUFValueType.BOOL):
            continue
        name = kind.name.lower()
        dtype = {"f": "f", "u": "u", "i": "i"}[name[0]] + str(int(name.strip("uintfloa")) // 8)
        value = np.frombuffer(rng.bytes(8), dtype=f"<{dtype}")[0].item()
        if name[0] == "f":
            value = float(rng.standard_normal())
        writer.add_key_value(f"one.{name}", value, kind)
        many = [value] * int(rng.integers(1, 9))
        writer.add_key_value(f"many.{name}", many, gguf.GGUFValueType.ARRAY, sub_type=kind)
    writer.add_bool("one.bool", True)
    writer.add_array("many.bool", [True, False])
    writer.add_string("one.string", "snow ☃ and \n")
    writer.add_array("many.string", ["", "a", "한", "🙂" * 9])
    writer.add_array("many.lists", [[1, 2], [3]])
    values = rng.standard_normal((3, 2, 4)).astype(np.float32)
    writer.add_tensor("cube", values)
    writer.add_tensor("vector", values[0, 0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.seek(4)
        file.write(struct.pack("<I", version))

    with GGUFFile(path) as ours:
        assert ours.version == version
        assert plain(ours.metadata["many.lists"]) == [[1, 2], [3]]
        del ours.metadata["many.lists"]  # the public reader flattens it
        same_as_public_reader(ours, path)
        assert ours.tensors["cube"].shape == (3, 2, 4)
        assert ours.rows(ours.tensors["cube"]).shape == (6, 16)
        assert ours.rows(ours.tensors["vector"]).shape == (1, 16)
        np.testing.assert_array_equal(
            ours.rows(ours.tensors["cube"]).view(np.float32).reshape(3, 2, 4), values
        )


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


def same_as_public_reader(ours: GGUFFile, path: Path) -> None:
    public = gguf.GGUFReader(path)
    for key, value in ours.metadata.items():
        assert plain(value) == public.fields[key].contents(), key
    assert set(ours.metadata) >= {
        key for key in public.fields if not key.startswith("GGUF.") and key != "many.lists"
    }
    assert list(ours.tensors) == [tensor.name for tensor in public.tensors]
    for theirs in public.tensors:
        info = ours.tensors[theirs.name]
        assert info.type == theirs.tensor_type
        assert info.shape == tuple(reversed(theirs.shape.tolist()))
        assert info.offset == theirs.data_offset
        assert np.array_equal(ours.data(info), theirs.data.view(np.uint8).reshape(-1))


def test_bytes_that_are_no_utf8_stay_apart_in_tokens_and_are_shown_in_values(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bytes.gguf"
    words = array(STRING, 2, text(b"\xff") + text(b"\xfe"))
    path.write_bytes(
        file_bytes([pair("words", ARRAY, words), pair("value", STRING, text(b"a\xff"))], [])
    )
    with GGUFFile(path) as file:
        assert file.metadata["words"] == ["\udcff", "\udcfe"]
        assert file.metadata["value"] == "a\ufffd"


def test_views_are_read_only_and_outlive_close(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(GOOD[:-64] + bytes(range(64)))
    file = GGUFFile(path)
    rows = file.rows(file.tensors["t"])
    assert rows.shape == (2, 32)
    assert not rows.flags.writeable and not rows.flags.owndata
    file.close()
    file.close()
    assert rows[1, 31] == 63
    with pytest.raises(AssertionError, match="closed"):
        file.data(file.tensors["t"])


@pytest.mark.cases
def test_handed_files_load_or_are_refused_as_told(cases_dir: Path) -> None:
    cases = json.loads((cases_dir / "gguf" / "cases.json").read_text())
    for case in cases:
        path = cases_dir / "gguf" / f"{case['id']}.gguf"
        try:
            open_model(path).close()
        except ModelFileError as error:
            assert case["expect"] in ("refuse", "either"), (case, error)
            assert str(error).startswith(f"{path.name}: ")
        else:
            assert case["expect"] in ("load", "either"), case


@pytest.mark.cases
def test_handed_vocabularies_open(cases_dir: Path) -> None:
    for path in sorted((cases_dir / "tokenizer").glob("*.gguf")):
        with GGUFFile(path) as file:
            assert len(file.metadata["tokenizer.ggml.tokens"]) > 1000
            assert not file.tensors


@pytest.mark.model
def test_smollm2_reads_as_the_public_package_does(smollm2_path: Path) -> None:
    with GGUFFile(smollm2_path) as file:
        same_as_public_reader(file, smollm2_path)


@pytest.mark.model
@pytest.mark.slow
def test_gemma3_reads_as_the_public_package_does(gemma3_path: Path) -> None:
    with GGUFFile(gemma3_path) as file:
        same_as_public_reader(file, gemma3_path)


@pytest.mark.model
@pytest.mark.slow
def test_qwen_reads_as_the_public_package_does(qwen_path: Path) -> None:
    with GGUFFile(qwen_path) as file:
        same_as_public_reader(file, qwen_path)
