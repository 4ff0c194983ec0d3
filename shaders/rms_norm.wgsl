// rms_norm: y[r, i] = x[s, i] * weight[i] / sqrt(mean(x[s, :]^2) + eps), s being source_row(r)
//
// x       [any rows, width] f32     weight  [width] f32     y  [rows, width] f32     source: row_same or row_given
// grid    (rows, 1, 1); one workgroup a row, WG lanes stride over width; any width >= 1
// count   values of a row that its mean is of: zeros lie behind them
// WG      power of two, const    accumulates in f32
struct Params { width: u32, count: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;
#include "include/${reduce}.wgsl"
#include "include/${source}.wgsl"

@compute @workgroup_size(WG)
fn rms_norm(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = source_row(group.x) * params.width;
  let out = group.x * params.width;
  var sum = 0.0;
  for (var i = lane; i < params.width; i += WG) { sum += x[row + i] * x[row + i]; }
  let scale = inverseSqrt(workgroup_sum(sum, lane) / f32(params.count) + params.eps);
  for (var i = lane; i < params.width; i += WG) { y[out + i] = x[row + i] * scale * weight[i]; }
}
