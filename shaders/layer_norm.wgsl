// layer_norm: y[r, :] = (x[s, :] - mean) / sqrt(var + eps) * weight + bias, s being source_row(r)
//
// x       [any rows, width] f32     weight, bias  [width] f32     y  [rows, width] f32     source: row_same or row_given
// grid    (rows, 1, 1); one workgroup a row, WG lanes stride over width; any width >= 1
// count   values of a row that its mean is of: zeros lie behind them
// WG      power of two, const    accumulates in f32
struct Params { width: u32, count: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<uniform> params: Params;
#include "include/${reduce}.wgsl"
#include "include/${source}.wgsl"

@compute @workgroup_size(WG)
fn layer_norm(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = source_row(group.x) * params.width;
  let out = group.x * params.width;
  let count = f32(params.count);
  var sum = 0.0;
  for (var i = lane; i < params.width; i += WG) { sum += x[row + i]; }
  let mean = workgroup_sum(sum, lane) / count;
  // The squares of what is left after the mean: a difference of two large sums would lose digits.
  var squares = 0.0;
  for (var i = lane; i < params.count; i += WG) { squares += (x[row + i] - mean) * (x[row + i] - mean); }
  let scale = inverseSqrt(workgroup_sum(squares, lane) / count + params.eps);
  for (var i = lane; i < params.width; i += WG) { y[out + i] = (x[row + i] - mean) * scale * weight[i] + bias[i]; }
}
