// rms_norm_add: residual[r, i] += x[r, i] * weight[i] / sqrt(mean(x[r, :]^2) + eps)
//
// x       [rows, width] f32     weight  [width] f32     residual  [rows, width] f32, in place
// grid    (rows, 1, 1); one workgroup a row, WG lanes stride over width; any width >= 1
// count   values of a row that its mean is of: zeros lie behind them
// WG      power of two, const    accumulates in f32
struct Params { width: u32, count: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> residual: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;
#include "include/${reduce}.wgsl"

@compute @workgroup_size(WG)
fn rms_norm_add(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.x * params.width;
  var sum = 0.0;
  for (var i = lane; i < params.width; i += WG) { sum += x[row + i] * x[row + i]; }
  let scale = inverseSqrt(workgroup_sum(sum, lane) / f32(params.count) + params.eps);
  for (var i = lane; i < params.width; i += WG) { residual[row + i] += x[row + i] * scale * weight[i]; }
}
