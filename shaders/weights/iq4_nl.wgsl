// IQ4_NL by planes: quants 16 bytes a unit (low nibbles, then high), one f16 scale. weight = d * code
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/scale_f16.wgsl"
#include "include/codes_iq4.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

struct Packed { v: vec4<u32>, scale: u32 }

fn fetch_unit(i: u32) -> Packed { return Packed(quants[i], fetch_scale(i)); }

fn unpack_unit(p: Packed, i: u32) -> Unit {
  return Unit(codes_of(p.v), codes_of(p.v >> vec4<u32>(4u)), vec2<f32>(unpack_scale(p.scale, i)), vec2<f32>());
}
