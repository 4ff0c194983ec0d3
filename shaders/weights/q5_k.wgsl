// Q5_K as in GGUF: 11 x 16 bytes for 256 columns: header, 2 of fifth bits, 8 of nibbles.
// weight = d * sc * q - dmin * m; the fifth bit of sub-block s is bit s of the byte for its column modulo 32
#include "include/unit.wgsl"
#include "include/k_scales.wgsl"
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

struct Packed { v: vec4<u32>, h: vec4<u32>, header: vec4<u32> }

fn fetch_unit(i: u32) -> Packed {
  let block = (i >> 3u) * 11u;
  let c = i & 7u;
  return Packed(quants[block + 3u + c], quants[block + 1u + (c & 1u)], quants[block]);
}

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let c = i & 7u;
  let h = p.h >> vec4<u32>(c & 6u);
  let k = k_scales(p.header, c);
  let mask = vec4<u32>(0x0f0f0f0fu);
  let fifth = vec4<u32>(0x10101010u);
  let lo = (p.v & mask) | ((h << vec4<u32>(4u)) & fifth);
  let hi = ((p.v >> vec4<u32>(4u)) & mask) | ((h << vec4<u32>(3u)) & fifth);
  return Unit(lo, hi, k.scale, k.minimum);
}
