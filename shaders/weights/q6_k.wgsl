// Q6_K by planes: quants 13 x 16 bytes for 256 columns (8 of low nibbles, 4 of top bits, 1 of int8 scales), one f16
// scale. weight = d * sc * (q - 32)
//
// Six bits moved to the top of their byte with the top bit flipped are 4 * (q - 32) as a signed byte.
#include "include/unit.wgsl"
#include "include/scale_f16.wgsl"
const SPLIT_HALVES = true;
const HAS_MINIMUM = false;
const SCALE_GROUP = 16u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

// Unit k of 8 lies in the 128 columns k / 4: low nibbles are chunk k & 3 of them, high nibbles 4 chunks later.
fn unit_chunks(u: u32) -> vec2<u32> {
  let first = (u >> 2u) * 8u + (u & 3u);
  return vec2<u32>(first, first + 4u);
}

struct Packed { low: vec4<u32>, top: vec4<u32>, group_scales: vec4<u32>, scale: u32 }

fn fetch_unit(i: u32) -> Packed {
  let block = i >> 3u;
  let k = i & 7u;
  let top = block * 13u + 8u + (k >> 2u) * 2u + (k & 1u);
  return Packed(quants[block * 13u + k], quants[top], quants[block * 13u + 12u], fetch_scale(block));
}

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let k = i & 7u;
  let top = p.top >> vec4<u32>(k & 2u);
  let flip = vec4<u32>(0x80808080u);
  let lo = ((p.low & vec4<u32>(0x0f0f0f0fu)) << vec4<u32>(2u)) | ((top & vec4<u32>(0x03030303u)) << vec4<u32>(6u));
  let hi = ((p.low >> vec4<u32>(2u)) & vec4<u32>(0x3c3c3c3cu)) | ((top << vec4<u32>(2u)) & vec4<u32>(0xc0c0c0c0u));
  let pair = select(p.group_scales.xy, p.group_scales.zw, k >= 4u) >> vec2<u32>((k & 3u) * 8u);
  let sc = vec2<f32>(vec2<i32>(pair << vec2<u32>(24u)) >> vec2<u32>(24u));
  return Unit(lo ^ flip, hi ^ flip, unpack_scale(p.scale, i >> 3u) * 0.25 * sc, vec2<f32>());
}
