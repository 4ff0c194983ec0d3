// Q5_0 by planes: quants 16 bytes a unit (low nibbles, then high); f16 d and 32 fifth bits in 6 bytes.
// weight = d * (q - 16)
//
// The five bits moved to the top of their byte with the top bit flipped are 8 * (q - 16) as a signed byte.
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/fifth_bits.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;

struct Packed { v: vec4<u32>, first: u32, second: u32 }

fn fetch_unit(i: u32) -> Packed {
  let at = i * 3u / 2u;
  return Packed(quants[i], scales[at], scales[at + 1u]);
}

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let odd = (i & 1u) == 1u;
  let d = unpack2x16float(select(p.first, p.first >> 16u, odd)).x * 0.125;
  let h = select((p.first >> 16u) | (p.second << 16u), p.second, odd);
  let lo = ((p.v & vec4<u32>(0x0f0f0f0fu)) << vec4<u32>(3u)) | (fifth_bits(h) << vec4<u32>(7u));
  let hi = ((p.v >> vec4<u32>(1u)) & vec4<u32>(0x78787878u)) | (fifth_bits(h >> 16u) << vec4<u32>(7u));
  let flip = vec4<u32>(0x80808080u);
  return Unit(lo ^ flip, hi ^ flip, vec2<f32>(d), vec2<f32>());
}
