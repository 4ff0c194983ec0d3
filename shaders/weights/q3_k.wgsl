// Q3_K by planes: quants 6 x 16 bytes for 256 columns (2 of third bits, 4 of two bits); 12 bytes of scales and f16 d.
// weight = d * (sc - 32) * (q - 4); the third bit of sub-block s of 32 is bit s of the byte for its column modulo 32
//
// Three bits moved to the top of their byte with the top bit flipped are 32 * (q - 4) as a signed byte.
#include "include/unit.wgsl"
#include "include/halves_apart.wgsl"
const HAS_MINIMUM = false;
const SCALE_GROUP = 16u;
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;

// Scales: the four words that hold a quant block's 14 bytes, which begin in the middle of a word where it is odd.
struct Packed { v: vec4<u32>, h: vec4<u32>, head: vec4<u32> }

fn fetch_unit(i: u32) -> Packed {
  let block = i >> 3u;
  let k = i & 7u;
  let at = block * 7u / 2u;
  return Packed(
    quants[block * 6u + 2u + pairs_word(k)],
    quants[block * 6u + (k & 1u)],
    vec4<u32>(scales[at], scales[at + 1u], scales[at + 2u], scales[at + 3u]));
}

fn unpack_unit(p: Packed, i: u32) -> Unit {
  let k = i & 7u;
  let odd = ((i >> 3u) & 1u) == 1u;
  let shifted = vec4<u32>(
    (p.head.x >> 16u) | (p.head.y << 16u), (p.head.y >> 16u) | (p.head.z << 16u),
    (p.head.z >> 16u) | (p.head.w << 16u), p.head.w >> 16u);
  let head = select(p.head, shifted, odd);
  // Four scales of six bits side by side: those of chunks 4 * (k / 2) on, of which this unit has two.
  let low = (select(head.x, head.y, (k & 2u) != 0u) >> (k & 4u)) & 0x0f0f0f0fu;
  let six = low | (((head.z >> (k & 6u)) & 0x03030303u) << 4u);
  let pair = (vec2<u32>(six, six >> 16u) >> vec2<u32>((k & 1u) * 8u)) & vec2<u32>(63u);
  let sc = vec2<f32>(vec2<i32>(pair) - vec2<i32>(32));

  let v = p.v >> pairs_shift(k);
  let h = p.h >> vec4<u32>((k >> 2u) * 4u + (k & 2u));
  let two = vec4<u32>(0x03030303u);
  let one = vec4<u32>(0x01010101u);
  let lo = ((v & two) << vec4<u32>(5u)) | ((h & one) << vec4<u32>(7u));
  let hi = (((v >> vec4<u32>(2u)) & two) << vec4<u32>(5u)) | (((h >> vec4<u32>(1u)) & one) << vec4<u32>(7u));
  let flip = vec4<u32>(0x80808080u);
  return Unit(lo ^ flip, hi ^ flip, unpack2x16float(head.w).x * 0.03125 * sc, vec2<f32>());
}
