// rms_norm_columns: x[r, c + i] *= weight[i] / sqrt(mean(x[r, c..]^2) + eps), in place, c being column
//
// x       [rows, row_width] f32     weight  [width] f32
// grid    (rows, 1, 1); one workgroup a row, WG lanes stride over width; any width >= 1
// WG      power of two, const    accumulates in f32
struct Params { width: u32, column: u32, row_width: u32, eps: f32 }
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
#include "include/${reduce}.wgsl"

@compute @workgroup_size(WG)
fn rms_norm_columns(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.x * params.row_width + params.column;
  var sum = 0.0;
  for (var i = lane; i < params.width; i += WG) { sum += x[row + i] * x[row + i]; }
  let scale = inverseSqrt(workgroup_sum(sum, lane) / f32(params.width) + params.eps);
  for (var i = lane; i < params.width; i += WG) { x[row + i] *= scale * weight[i]; }
}
