// rms_norm_quantize: quantize_q8(rms_norm(x, weight, eps)) without the floats in between
//
// x       [any rows, width] f32     weight  [width] f32     source: row_same or row_given
// out_q, out_scales  as in quantize_q8
// grid    (rows, 1, 1); one workgroup a row, a lane takes whole runs of 32; width a multiple of 32
// WG      power of two, const    accumulates in f32
// A lane's first run stays in registers between the sum and the rounding: with enough lanes x is read once.
struct Params { width: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out_q: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> out_scales: array<vec4<f32>>;
@group(0) @binding(5) var<uniform> params: Params;
#include "include/${reduce}.wgsl"
#include "include/${source}.wgsl"
#include "include/dot16.wgsl"
#include "include/quantize.wgsl"

fn load_run(i: u32) -> Run {
  return Run(array<vec4<f32>, 8>(
    x[i], x[i + 1u], x[i + 2u], x[i + 3u], x[i + 4u], x[i + 5u], x[i + 6u], x[i + 7u]));
}

fn squares(r: Run) -> f32 {
  return dot(r.v[0], r.v[0]) + dot(r.v[1], r.v[1]) + dot(r.v[2], r.v[2]) + dot(r.v[3], r.v[3])
    + dot(r.v[4], r.v[4]) + dot(r.v[5], r.v[5]) + dot(r.v[6], r.v[6]) + dot(r.v[7], r.v[7]);
}

fn times(a: Run, b: Run, scale: f32) -> Run {
  return Run(array<vec4<f32>, 8>(
    a.v[0] * scale * b.v[0], a.v[1] * scale * b.v[1], a.v[2] * scale * b.v[2], a.v[3] * scale * b.v[3],
    a.v[4] * scale * b.v[4], a.v[5] * scale * b.v[5], a.v[6] * scale * b.v[6], a.v[7] * scale * b.v[7]));
}

fn load_weight(i: u32) -> Run {
  return Run(array<vec4<f32>, 8>(
    weight[i], weight[i + 1u], weight[i + 2u], weight[i + 3u],
    weight[i + 4u], weight[i + 5u], weight[i + 6u], weight[i + 7u]));
}

@compute @workgroup_size(WG)
fn rms_norm_quantize(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
) {
  let runs = params.width / 32u;
  let row = source_row(group.x) * runs;
  var mine: Run;
  var by: Run;
  if (lane < runs) {
    mine = load_run((row + lane) * 8u);
    by = load_weight(lane * 8u);
  }
  var sum = squares(mine);
  for (var r = lane + WG; r < runs; r += WG) { sum += squares(load_run((row + r) * 8u)); }
  let scale = inverseSqrt(workgroup_sum(sum, lane) / f32(params.width) + params.eps);
  let out = group.x * runs;
  if (lane < runs) { store_run(out + lane, times(mine, by, scale)); }
  for (var r = lane + WG; r < runs; r += WG) {
    store_run(out + r, times(load_run((row + r) * 8u), load_weight(r * 8u), scale));
  }
}
