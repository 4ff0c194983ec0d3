// MXFP4 by planes: quants 16 bytes a unit (low nibbles, then high), one byte of exponent.
// weight = 2 ^ (exponent - 128) * code, codes being twice the 4-bit floats
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
// 0 1 2 3, 4 6 8 12, and their negatives
const CODES_0 = vec4<u32>(0u, 1u, 2u, 3u);
const CODES_1 = vec4<u32>(4u, 6u, 8u, 12u);
const CODES_2 = vec4<u32>(0u, 255u, 254u, 253u);
const CODES_3 = vec4<u32>(252u, 250u, 248u, 244u);
#include "include/codebook.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;

struct Packed { v: vec4<u32>, exponents: u32 }

fn fetch_unit(i: u32) -> Packed { return Packed(quants[i], scales[i >> 2u]); }

fn unpack_unit(p: Packed, i: u32) -> Unit {
  // The two least scales are subnormal, which devices may take as 0.
  let exponent = (p.exponents >> ((i & 3u) * 8u)) & 255u;
  let bits = select((exponent - 1u) << 23u, 0x00200000u << exponent, exponent < 2u);
  return Unit(codes_of(p.v), codes_of(p.v >> vec4<u32>(4u)), vec2<f32>(bitcast<f32>(bits)), vec2<f32>());
}
