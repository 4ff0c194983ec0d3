"""A byte-level BPE model's tokenizer as transformers loads it: some benchmarks count tokens on their own side."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

# Qwen 2's way of splitting text before merges.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write(model: Path, folder: Path) -> None:
    """Written once: reading the vocabulary takes a while."""
    if (folder / "tokenizer_config.json").is_file():
        return
    fields = gguf.GGUFReader(model).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(one.split(" ")) for one in fields["tokenizer.ggml.merges"].contents()]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokens[fields["tokenizer.ggml.eos_token_id"].contents()]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
