// rms_norm_quantize: quantize_q8(rms_norm(x, weight, eps)) without the floats in between
//
// x       [rows, width] f32     weight  [width] f32     out_q, out_scales  as in quantize_q8
// grid    (rows, 1, 1); one workgroup a row, a lane takes whole runs of 32; width a multiple of 32
// WG      power of two, const    accumulates in f32
struct Params { width: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out_q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> out_scales: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: Params;
#include "include/${reduce}.wgsl"
#include "include/dot16.wgsl"
#include "include/quantize.wgsl"

fn scaled(i: u32, w: u32, scale: f32) -> vec4<f32> { return x[i] * scale * weight[w]; }

@compute @workgroup_size(WG)
fn rms_norm_quantize(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
) {
  let quads = params.width / 4u;
  let row = group.x * quads;
  var sum = 0.0;
  for (var i = lane; i < quads; i += WG) { sum += dot(x[row + i], x[row + i]); }
  let s = inverseSqrt(workgroup_sum(sum, lane) / f32(params.width) + params.eps);
  for (var r = lane; r < quads / 8u; r += WG) {
    let w = r * 8u;
    let i = row + w;
    store_run(row / 8u + r, Run(array<vec4<f32>, 8>(
      scaled(i, w, s), scaled(i + 1u, w + 1u, s), scaled(i + 2u, w + 2u, s), scaled(i + 3u, w + 3u, s),
      scaled(i + 4u, w + 4u, s), scaled(i + 5u, w + 5u, s), scaled(i + 6u, w + 6u, s), scaled(i + 7u, w + 7u, s))));
  }
}
