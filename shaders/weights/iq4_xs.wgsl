// IQ4_XS by planes: quants 16 bytes a unit (low nibbles, then high); of 256 columns f16 d, 16 top bits and 32 low bits
// of scales in two words. weight = d * (sc - 32) * code
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/codes_iq4.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<vec2<u32>>;

struct Packed { v: vec4<u32>, head: vec2<u32> }

fn fetch_unit(i: u32) -> Packed { return Packed(quants[i], scales[i >> 3u]); }

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let k = i & 7u;
  let sc = ((p.head.y >> (4u * k)) & 15u) | (((p.head.x >> (16u + 2u * k)) & 3u) << 4u);
  let d = unpack2x16float(p.head.x).x * f32(i32(sc) - 32);
  return Unit(codes_of(p.v), codes_of(p.v >> vec4<u32>(4u)), vec2<f32>(d), vec2<f32>());
}
