// Q5_K as in GGUF: 11 x 16 bytes for 256 columns: header, 2 of fifth bits, 8 of nibbles.
// weight = d * sc * q - dmin * m; the fifth bit of sub-block s is bit s of the byte for its column modulo 32
#include "include/unit.wgsl"
#include "include/k_scales.wgsl"
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

fn load_unit(row: u32, u: u32) -> Unit {
  let block = ((row * params.units + u) >> 3u) * 11u;
  let c = u & 7u;
  let v = quants[block + 3u + c];
  let h = quants[block + 1u + (c & 1u)] >> vec4<u32>(c & 6u);
  let k = k_scales(quants[block], c);
  let mask = vec4<u32>(0x0f0f0f0fu);
  let fifth = vec4<u32>(0x10101010u);
  let lo = (v & mask) | ((h << vec4<u32>(4u)) & fifth);
  let hi = ((v >> vec4<u32>(4u)) & mask) | ((h << vec4<u32>(3u)) & fifth);
  return Unit(lo, hi, k.scale, k.minimum);
}
