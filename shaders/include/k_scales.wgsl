// Q4_K and Q5_K: sub-blocks of 32 with 6-bit scales and minima, packed in the quant block's first 16 bytes.
//
// Unit c of 8 holds half a sub-block in each half: 16 columns of sub-block 2 * (c / 2) in the low nibbles and of
// the next sub-block in the high ones.
const SPLIT_HALVES = true;
const HAS_MINIMUM = true;
const SCALE_GROUP = 32u;

struct KScales { scale: vec2<f32>, minimum: vec2<f32> }

fn unit_chunks(u: u32) -> vec2<u32> {
  let first = (u >> 1u) * 4u + (u & 1u);
  return vec2<u32>(first, first + 2u);
}

// Words of the header: f16 d and dmin; then bytes 0-3, 4-7, 8-11 of the packed scales and minima.
fn k_scales(header: vec4<u32>, c: u32) -> KScales {
  let bytes = header.yzw >> vec3<u32>((c & 2u) * 8u);
  let late = vec2<u32>(
    (bytes.z & 0x0f0fu) | ((bytes.x >> 2u) & 0x3030u),
    ((bytes.z >> 4u) & 0x0f0fu) | ((bytes.y >> 2u) & 0x3030u));
  let pair = select(late, bytes.xy & vec2<u32>(0x3f3fu), c < 4u);
  let d = unpack2x16float(header.x);
  return KScales(
    d.x * vec2<f32>(vec2<u32>(pair.x & 0xffu, pair.x >> 8u)),
    d.y * vec2<f32>(vec2<u32>(pair.y & 0xffu, pair.y >> 8u)));
}
