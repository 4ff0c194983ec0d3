// Q8_0 by planes: quants 32 signed bytes a unit, one f16 scale. weight = d * q
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/scale_f16.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

fn load_unit(row: u32, u: u32) -> Unit {
  let i = row * params.units + u;
  return Unit(quants[2u * i], quants[2u * i + 1u], vec2<f32>(scale_of(i)), vec2<f32>());
}
