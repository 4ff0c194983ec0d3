// plane_scale(i): the f16 scale of quant block i, for types whose scales are a plane of their own.
@group(0) @binding(1) var<storage, read> scales: array<u32>;

fn plane_scale(i: u32) -> f32 { return unpack2x16float(scales[i >> 1u] >> ((i & 1u) * 16u)).x; }
