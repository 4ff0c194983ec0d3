// Q2_K by planes: quants 5 x 16 bytes for 256 columns (16 of scales and minima, 4 of two bits), f16 d and dmin in a word.
// weight = d * (sc * q) - dmin * m
//
// sc * q fits a byte, so all 256 columns have the scale d; a minimum is of one chunk, which takes a tile of its own.
#include "include/unit.wgsl"
#include "include/halves_apart.wgsl"
const HAS_MINIMUM = true;
const SCALE_GROUP = 32u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;

struct Packed { v: vec4<u32>, factors: u32, dm: u32 }

fn fetch_unit(i: u32) -> Packed {
  let block = i >> 3u;
  let k = i & 7u;
  return Packed(quants[block * 5u + 1u + pairs_word(k)], quants[block * 5u][k >> 1u], scales[block]);
}

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let k = i & 7u;
  let dm = unpack2x16float(p.dm);
  let v = p.v >> pairs_shift(k);
  let mask = vec4<u32>(0x03030303u);
  let pair = vec2<u32>(p.factors, p.factors >> 16u) >> vec2<u32>((k & 1u) * 8u);
  let sc = pair & vec2<u32>(15u);
  let m = vec2<f32>((pair >> vec2<u32>(4u)) & vec2<u32>(15u));
  return Unit((v & mask) * sc.x, ((v >> vec4<u32>(2u)) & mask) * sc.y, vec2<f32>(dm.x), dm.y * m);
}
