// Q5_1 as in GGUF: 6 words a unit: f16 d and m, 32 fifth bits, 16 bytes of nibbles. weight = d * q + m
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/fifth_bits.wgsl"
const HAS_MINIMUM = true;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<u32>;

fn load_unit(row: u32, u: u32) -> Unit {
  let i = (row * params.units + u) * 6u;
  let dm = unpack2x16float(quants[i]);
  let h = quants[i + 1u];
  let v = vec4<u32>(quants[i + 2u], quants[i + 3u], quants[i + 4u], quants[i + 5u]);
  let mask = vec4<u32>(0x0f0f0f0fu);
  let lo = (v & mask) | (fifth_bits(h) << vec4<u32>(4u));
  let hi = ((v >> vec4<u32>(4u)) & mask) | (fifth_bits(h >> 16u) << vec4<u32>(4u));
  return Unit(lo, hi, vec2<f32>(dm.x), vec2<f32>(-dm.y));
}
