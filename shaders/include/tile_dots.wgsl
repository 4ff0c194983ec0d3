// Integer dot products of tile_int8 and tile_int8_minima.
// Sums start at the bits of the float 1.5 * 2^23 and stay within 2^22 of it. There neighbouring floats are 1 apart, so
// the bits as a float, minus that float, are the sum: cheaper than a conversion.
const ZERO = 0x4b400000;

fn floats(sums: vec4<i32>) -> vec4<f32> { return bitcast<vec4<f32>>(sums) - vec4<f32>(12582912.0); }

fn add_dot(sum: i32, a: vec4<u32>, b: vec4<u32>) -> i32 {
  return sum + dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
