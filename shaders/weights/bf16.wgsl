// BF16 as in GGUF, two a word: the upper half of an f32
#include "include/eight.wgsl"
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

fn load_eight(row: u32, e: u32) -> Eight {
  let v = quants[row * params.units + e];
  let even = bitcast<vec4<f32>>(v << vec4<u32>(16u));
  let odd = bitcast<vec4<f32>>(v & vec4<u32>(0xffff0000u));
  return Eight(vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w));
}
