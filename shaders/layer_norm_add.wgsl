// layer_norm_add: y[r, :] = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias of s = x[r, :] + residual[source_row(r), :]
//
// x       [rows, width] f32     residual  [any rows, width] f32     source: row_same or row_given
// weight, bias  [width] f32     y  [rows, width] f32
// grid    (rows, 1, 1); one workgroup a row, WG lanes stride over width; any width >= 1
// count   values of a row that its mean is of: zeros lie behind them
// WG      power of two, const    accumulates in f32
struct Params { width: u32, count: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> residual: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<uniform> params: Params;
#include "include/${reduce}.wgsl"
#include "include/${source}.wgsl"

@compute @workgroup_size(WG)
fn layer_norm_add(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.x * params.width;
  let other = source_row(group.x) * params.width;
  let count = f32(params.count);
  var sum = 0.0;
  for (var i = lane; i < params.width; i += WG) { sum += x[row + i] + residual[other + i]; }
  let mean = workgroup_sum(sum, lane) / count;
  // The squares of what is left after the mean: a difference of two large sums would lose digits.
  var squares = 0.0;
  for (var i = lane; i < params.count; i += WG) {
    let centred = x[row + i] + residual[other + i] - mean;
    squares += centred * centred;
  }
  let scale = inverseSqrt(workgroup_sum(squares, lane) / count + params.eps);
  for (var i = lane; i < params.width; i += WG) {
    y[row + i] = (x[row + i] + residual[other + i] - mean) * scale * weight[i] + bias[i];
  }
}
