// Q4_K as in GGUF: 9 x 16 bytes for 256 columns: header, then 8 of nibbles. weight = d * sc * q - dmin * m
#include "include/unit.wgsl"
#include "include/k_scales.wgsl"
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

struct Packed { v: vec4<u32>, header: vec4<u32> }

fn fetch_unit(i: u32) -> Packed {
  let block = (i >> 3u) * 9u;
  return Packed(quants[block + 1u + (i & 7u)], quants[block]);
}

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let k = k_scales(p.header, i & 7u);
  let mask = vec4<u32>(0x0f0f0f0fu);
  return Unit(p.v & mask, (p.v >> vec4<u32>(4u)) & mask, k.scale, k.minimum);
}
