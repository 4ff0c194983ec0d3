// Q5_1 by planes: quants 16 bytes a unit (low nibbles, then high); f16 d and m, then 32 fifth bits, in two words.
// weight = d * q + m
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/fifth_bits.wgsl"
const HAS_MINIMUM = true;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<vec2<u32>>;

fn load_unit(row: u32, u: u32) -> Unit {
  let i = row * params.units + u;
  let v = quants[i];
  let head = scales[i];
  let dm = unpack2x16float(head.x);
  let mask = vec4<u32>(0x0f0f0f0fu);
  let lo = (v & mask) | (fifth_bits(head.y) << vec4<u32>(4u));
  let hi = ((v >> vec4<u32>(4u)) & mask) | (fifth_bits(head.y >> 16u) << vec4<u32>(4u));
  return Unit(lo, hi, vec2<f32>(dm.x), vec2<f32>(-dm.y));
}
