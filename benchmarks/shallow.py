"""The first layers of a model as a model of its own: a draft where no smaller sibling is at hand.

    python benchmarks/shallow.py MODEL.gguf DRAFT.gguf --layers 8
    python benchmarks/shallow.py MODEL.gguf COPY.gguf --layers 8 --silence

`--silence` keeps all layers, and makes those behind the first N add nothing: such a copy costs what its model does,
and says what its first N layers say, so that a draft of these is always right.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import gguf
import numpy as np

_LAYER = re.compile(r"blk\.(\d+)\.(.*)")
_OUTPUTS = {"attn_output.weight", "ffn_down.weight", "attn_output.bias", "ffn_down.bias"}


def shallow(model: Path, made: Path, layers: int, silence: bool = False) -> None:
    """Write `made` from `model`. Raises ValueError where the model has no more layers than that."""
    reader = gguf.GGUFReader(model)
    architecture = str(reader.fields["general.architecture"].contents())
    count_key = f"{architecture}.block_count"
    if not 0 < layers < int(reader.fields[count_key].contents()):
        raise ValueError(f"{model.name} has {reader.fields[count_key].contents()} layers")
    writer = gguf.GGUFWriter(made, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = layers if name == count_key and not silence else field.contents()
        element = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, value, field.types[0], sub_type=element)
    for tensor in reader.tensors:
        data = tensor.data
        found = _LAYER.fullmatch(tensor.name)
        if found is not None and int(found[1]) >= layers:
            if not silence:
                continue
            if found[2] in _OUTPUTS:
                data = np.zeros_like(data)  # in every quant type: its scales are zero
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the first layers of a model as a model")
    parser.add_argument("model", type=Path)
    parser.add_argument("made", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--silence", action="store_true", help="keep the others, adding nothing")
    options = parser.parse_args()
    shallow(options.model, options.made, options.layers, options.silence)


if __name__ == "__main__":
    main()
