// F32 as in GGUF
#include "include/eight.wgsl"
@group(0) @binding(0) var<storage, read> quants: array<vec4<f32>>;

fn load_eight(row: u32, e: u32) -> Eight {
  let i = (row * params.units + e) * 2u;
  return Eight(quants[i], quants[i + 1u]);
}
