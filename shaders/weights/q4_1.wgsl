// Q4_1 by planes: quants 16 bytes a unit (low nibbles, then high); f16 d and m in a word. weight = d * q + m
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
const HAS_MINIMUM = true;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;

struct Packed { v: vec4<u32>, dm: u32 }

fn fetch_unit(i: u32) -> Packed { return Packed(quants[i], scales[i]); }

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let dm = unpack2x16float(p.dm);
  let mask = vec4<u32>(0x0f0f0f0fu);
  return Unit(p.v & mask, (p.v >> vec4<u32>(4u)) & mask, vec2<f32>(dm.x), vec2<f32>(-dm.y));
}
