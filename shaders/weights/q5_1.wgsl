// Q5_1 by planes: quants 16 bytes a unit (low nibbles, then high); f16 d and m, then 32 fifth bits, in two words.
// weight = d * q + m
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/fifth_bits.wgsl"
const HAS_MINIMUM = true;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<vec2<u32>>;

struct Packed { v: vec4<u32>, head: vec2<u32> }

fn fetch_unit(i: u32) -> Packed { return Packed(quants[i], scales[i]); }

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let dm = unpack2x16float(p.head.x);
  let mask = vec4<u32>(0x0f0f0f0fu);
  let lo = (p.v & mask) | (fifth_bits(p.head.y) << vec4<u32>(4u));
  let hi = ((p.v >> vec4<u32>(4u)) & mask) | (fifth_bits(p.head.y >> 16u) << vec4<u32>(4u));
  return Unit(lo, hi, vec2<f32>(dm.x), vec2<f32>(-dm.y));
}
