"""scripts/convert-minilm on a folder as sentence-transformers writes it, without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberd.gguf.encoder import open_encoder, pooling_of
from emberd.protocol import WorkerOptions
from emberd.reference.encoder import CpuEncoder
from emberd.text.tokenizer import Tokenizer
from tiny_encoder import SPECIAL, TOKENS, TinyEncoder, encoder_model
from tolerance import check

SCRIPT = Path(__file__).parent.parent / "scripts" / "convert-minilm"
STEMS = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}


def their_name(name: str) -> str:
    parts = name.split(".")
    if parts[0] != "blk":
        return f"{STEMS[parts[0]]}.{parts[1]}"
    return f"encoder.layer.{parts[1]}.{STEMS[parts[2]]}.{parts[3]}"


def write_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        raw = values.tobytes()
        kind = {"float32": "F32", "int64": "I64"}[values.dtype.name]
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def tiny(tmp_path: Path) -> TinyEncoder:
    return encoder_model(tmp_path / "tiny.gguf")


@pytest.fixture
def folder(tmp_path: Path, tiny: TinyEncoder) -> Path:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    tensors = {their_name(name): a.astype(np.float32) for name, a in tiny.arrays.items()}
    tensors["embeddings.position_ids"] = np.arange(64)[None]
    tensors["pooler.dense.weight"] = np.zeros((64, 64), np.float32)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    lines = [
        token if token in SPECIAL else token[1:] if token[0] == "\u2581" else f"##{token}"
        for token in TOKENS
    ]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def convert(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(folder), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_file_is_the_encoder(tmp_path: Path, folder: Path, tiny: TinyEncoder) -> None:
    out = tmp_path / "made" / "converted.gguf"
    done = convert(folder, out)
    assert done.returncode == 0, done.stderr
    model = open_encoder(out)
    assert pooling_of(model.file) == "cls"
    tokenizer = Tokenizer.from_metadata(model.file.metadata)
    model.close()
    ids = tokenizer.encode("Hello, unable world", add_special=True, parse_special=False)
    assert [tokenizer.token_text(i) for i in ids[1:4]] == ["\u2581hello", "\u2581,", "\u2581un"]
    encoder = CpuEncoder.load(WorkerOptions(str(out)))
    states = encoder.hidden_states(np.array(ids, np.int32), np.array([0, len(ids)], np.int32))
    check(states, tiny.states(ids), "float")
    encoder.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.json", CONFIG | {"model_type": "roberta"}, "not a BERT encoder"),
        ("config.json", CONFIG | {"hidden_act": "relu"}, "not a BERT encoder"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "neither the mean nor"),
        ("vocab.txt", None, "vocab.txt"),
    ],
)
def test_what_is_no_such_encoder_is_refused_and_no_file_is_left(
    tmp_path: Path, folder: Path, file: str, change: Any, words: str
) -> None:
    if change is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(json.dumps(change))
    out = tmp_path / "converted.gguf"
    done = convert(folder, out)
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()
