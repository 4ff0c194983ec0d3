// Q4_1 as in GGUF: 5 words a unit: f16 d and m, then 16 bytes of nibbles (low half, then high). weight = d * q + m
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
const HAS_MINIMUM = true;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<u32>;

fn load_unit(row: u32, u: u32) -> Unit {
  let i = (row * params.units + u) * 5u;
  let dm = unpack2x16float(quants[i]);
  let v = vec4<u32>(quants[i + 1u], quants[i + 2u], quants[i + 3u], quants[i + 4u]);
  let mask = vec4<u32>(0x0f0f0f0fu);
  return Unit(v & mask, (v >> vec4<u32>(4u)) & mask, vec2<f32>(dm.x), vec2<f32>(-dm.y));
}
