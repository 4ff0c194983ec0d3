// The f16 scale of quant block i, from a plane of them, two a word.
@group(0) @binding(1) var<storage, read> scales: array<u32>;

fn fetch_scale(i: u32) -> u32 { return scales[i >> 1u]; }

fn unpack_scale(word: u32, i: u32) -> f32 { return unpack2x16float(word >> ((i & 1u) * 16u)).x; }
