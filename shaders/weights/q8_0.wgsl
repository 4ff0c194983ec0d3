// Q8_0 by planes: quants 32 signed bytes a unit, one f16 scale. weight = d * q
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/scale_f16.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

struct Packed { lo: vec4<u32>, hi: vec4<u32>, scale: u32 }

fn fetch_unit(i: u32) -> Packed { return Packed(quants[2u * i], quants[2u * i + 1u], fetch_scale(i)); }

fn unpack_unit(p: Packed, i: u32) -> Unit {
  return Unit(p.lo, p.hi, vec2<f32>(unpack_scale(p.scale, i)), vec2<f32>());
}
