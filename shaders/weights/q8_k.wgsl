// Q8_K by planes: quants 256 signed bytes, f32 d. weight = d * q
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;

struct Packed { lo: vec4<u32>, hi: vec4<u32>, scale: f32 }

fn fetch_unit(i: u32) -> Packed { return Packed(quants[2u * i], quants[2u * i + 1u], scales[i >> 3u]); }

fn unpack_unit(p: Packed, i: u32) -> Unit { return Unit(p.lo, p.hi, vec2<f32>(p.scale), vec2<f32>()); }
