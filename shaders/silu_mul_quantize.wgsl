// silu_mul_quantize: quantize_q8(gated(gate, up)), gate the first half of a row of gate_up, up the second; or no gate
//
// gate_up [rows, PARTS * width] f32     out_q, out_scales  as in quantize_q8
// grid    (lanes over all runs, 1, fold); a lane a run of 32; width a multiple of 32
// activation  as in silu_mul     WG  const
struct Params { runs: u32, row_runs: u32 }
@group(0) @binding(0) var<storage, read> gate_up: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out_q: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out_scales: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: Params;
#include "include/${activation}.wgsl"
#include "include/dot16.wgsl"
#include "include/quantize.wgsl"

fn product(i: u32, up: u32) -> vec4<f32> {
  let g = gate_up[i];
  let u = gate_up[i + up];
  return vec4<f32>(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
}

@compute @workgroup_size(WG)
fn silu_mul_quantize(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
) {
  let run = (group.z * groups.x + group.x) * WG + lane;
  if (run >= params.runs) { return; }
  let up = (PARTS - 1u) * params.row_runs * 8u;
  let i = (run + run / params.row_runs * params.row_runs * (PARTS - 1u)) * 8u;
  store_run(run, Run(array<vec4<f32>, 8>(
    product(i, up), product(i + 1u, up), product(i + 2u, up), product(i + 3u, up),
    product(i + 4u, up), product(i + 5u, up), product(i + 6u, up), product(i + 7u, up))));
}
