"""GGUF files of a real model's shape without its weights: a header, and zeros that take no room on the disk."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType


class LlamaShape(NamedTuple):
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    context: int = 131072


LLAMA_1B = LlamaShape(16, 2048, 8192, 32, 8, 64, 128256, True)
LLAMA_8B = LlamaShape(32, 4096, 14336, 32, 8, 128, 128256, False)


def shape_file(path: Path, shape: LlamaShape) -> Path:
    """Q4_K matrices, a Q6_K embedding."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a"])

    def add(name: str, *dims: int, kind: str = "Q4_K") -> None:
        quant = GGMLQuantizationType[kind]
        block, nbytes = gguf.GGML_QUANT_SIZES[quant]
        size = prod(dims) // block * nbytes
        writer.add_tensor_info(name, dims, np.dtype("float32"), size, raw_dtype=quant)

    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    add("token_embd.weight", shape.vocab, shape.width, kind="Q6_K")
    if not shape.tied:
        add("output.weight", shape.vocab, shape.width, kind="Q6_K")
    add("output_norm.weight", shape.width, kind="F32")
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            add(f"{prefix}{name}.weight", shape.width, kind="F32")
        for name, rows, cols in (
            ("attn_q", heads, shape.width),
            ("attn_k", kv, shape.width),
            ("attn_v", kv, shape.width),
            ("attn_output", shape.width, heads),
            ("ffn_gate", shape.ffn, shape.width),
            ("ffn_up", shape.ffn, shape.width),
            ("ffn_down", shape.width, shape.ffn),
        ):
            add(f"{prefix}{name}.weight", rows, cols)
    return _written(writer, path)


def embedding_gemma_file(path: Path) -> Path:
    """EmbeddingGemma 300M in Q8_0, as llama.cpp's converter writes it."""
    width, ffn, heads, head_dim, inner = 768, 1152, 3, 256, 3072
    name = "gemma-embedding"
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(24)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(512)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["a"])
    writer.add_token_scores([0.0])
    for dense, size_in, size_out in (("dense_2", width, inner), ("dense_3", inner, width)):
        writer.add_uint32(f"{name}.{dense}_feat_in", size_in)
        writer.add_uint32(f"{name}.{dense}_feat_out", size_out)

    def add(name: str, *dims: int) -> None:
        quant = GGMLQuantizationType.Q8_0 if len(dims) > 1 else GGMLQuantizationType.F32
        block, nbytes = gguf.GGML_QUANT_SIZES[quant]
        size = prod(dims) // block * nbytes
        writer.add_tensor_info(f"{name}.weight", dims, np.dtype("float32"), size, raw_dtype=quant)

    add("token_embd", 262144, width)
    add("output_norm", width)
    add("dense_2", inner, width)
    add("dense_3", width, inner)
    for layer in range(24):
        prefix = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            add(prefix + norm, width)
        for norm in ("attn_q_norm", "attn_k_norm"):
            add(prefix + norm, head_dim)
        add(prefix + "attn_q", heads * head_dim, width)
        add(prefix + "attn_k", head_dim, width)
        add(prefix + "attn_v", head_dim, width)
        add(prefix + "attn_output", width, heads * head_dim)
        add(prefix + "ffn_gate", ffn, width)
        add(prefix + "ffn_up", ffn, width)
        add(prefix + "ffn_down", width, ffn)
    return _written(writer, path)


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
    sizes = [
        gguf.GGUFWriter.ggml_pad(t.nbytes, 32) for part in writer.tensors for t in part.values()
    ]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(gguf.GGUFWriter.ggml_pad(path.stat().st_size, 32) + sum(sizes))
    return path
