// scale_of(i): the f16 scale of quant block i, from a plane of them, two a word.
@group(0) @binding(1) var<storage, read> scales: array<u32>;

fn scale_of(i: u32) -> f32 { return unpack2x16float(scales[i >> 1u] >> ((i & 1u) * 16u)).x; }
