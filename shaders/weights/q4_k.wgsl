// Q4_K as in GGUF: 9 x 16 bytes for 256 columns: header, then 8 of nibbles. weight = d * sc * q - dmin * m
#include "include/unit.wgsl"
#include "include/k_scales.wgsl"
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

fn load_unit(row: u32, u: u32) -> Unit {
  let block = ((row * params.units + u) >> 3u) * 9u;
  let c = u & 7u;
  let v = quants[block + 1u + c];
  let k = k_scales(quants[block], c);
  let mask = vec4<u32>(0x0f0f0f0fu);
  return Unit(v & mask, (v >> vec4<u32>(4u)) & mask, k.scale, k.minimum);
}
