// quantize_q8: x rounded to int8 in runs of 32 with scale max|x| / 127
//
// x       [rows, width] f32     out_q  [rows, width] int8, 4 a word
// out_scales [rows, width / 16] f32 pairs (scale, scale * sum of the 16 int8)
// grid    (lanes over all runs, 1, fold); a lane a run     WG  const     width a multiple of 32
struct Params { runs: u32 }
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out_q: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out_scales: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: Params;
#include "include/dot16.wgsl"
#include "include/quantize.wgsl"

@compute @workgroup_size(WG)
fn quantize_q8(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
) {
  let run = (group.z * groups.x + group.x) * WG + lane;
  if (run >= params.runs) { return; }
  let i = run * 8u;
  store_run(run, Run(array<vec4<f32>, 8>(
    x[i], x[i + 1u], x[i + 2u], x[i + 3u], x[i + 4u], x[i + 5u], x[i + 6u], x[i + 7u])));
}
