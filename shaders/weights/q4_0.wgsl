// Q4_0 by planes: quants 16 bytes a unit (low nibbles, then high), one f16 scale. weight = d * (q - 8)
//
// A nibble moved to the top of its byte with its own top bit flipped is 16 * (q - 8) as a signed byte.
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/scale_f16.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

struct Packed { v: vec4<u32>, scale: u32 }

fn fetch_unit(i: u32) -> Packed { return Packed(quants[i], fetch_scale(i)); }

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let v = p.v ^ vec4<u32>(0x88888888u);
  let d = unpack_scale(p.scale, i) * 0.0625;
  return Unit((v << vec4<u32>(4u)) & vec4<u32>(0xf0f0f0f0u), v & vec4<u32>(0xf0f0f0f0u), vec2<f32>(d), vec2<f32>());
}
