// F16 as in GGUF, two a word
#include "include/eight.wgsl"
@group(0) @binding(0) var<storage, read> quants: array<vec4<u32>>;

fn load_eight(row: u32, e: u32) -> Eight {
  let v = quants[row * params.units + e];
  return Eight(
    vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)),
    vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w)));
}
