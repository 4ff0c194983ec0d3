// Q5_0 by planes: quants 5 words a unit (32 fifth bits, 16 bytes of nibbles), one f16 scale. weight = d * (q - 16)
//
// The five bits moved to the top of their byte with the top bit flipped are 8 * (q - 16) as a signed byte.
#include "include/unit.wgsl"
#include "include/halves_joined.wgsl"
#include "include/scales_plane.wgsl"
#include "include/fifth_bits.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<u32>;

fn load_unit(row: u32, u: u32) -> Unit {
  let unit = row * params.units + u;
  let i = unit * 5u;
  let h = quants[i];
  let v = vec4<u32>(quants[i + 1u], quants[i + 2u], quants[i + 3u], quants[i + 4u]);
  let lo = ((v & vec4<u32>(0x0f0f0f0fu)) << vec4<u32>(3u)) | (fifth_bits(h) << vec4<u32>(7u));
  let hi = ((v >> vec4<u32>(1u)) & vec4<u32>(0x78787878u)) | (fifth_bits(h >> 16u) << vec4<u32>(7u));
  let flip = vec4<u32>(0x80808080u);
  return Unit(lo ^ flip, hi ^ flip, vec2<f32>(plane_scale(unit) * 0.125), vec2<f32>());
}
