// embedding_float: y[t, :] = weight[id(t), :] * scale, for F32, F16, BF16
//
// quants  a part of a WeightMatrix, through weights/${weight}.wgsl; the rest as in embedding
// grid    (tokens, lanes over the eights of a row, 1)     WG  const
struct Params { units: u32, num_rows: u32, first_row: u32, scale: f32 }
#include "weights/${weight}.wgsl"
#include "include/token_id.wgsl"
@group(0) @binding(5) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn embedding_float(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let t = group.x;
  let e = group.y * WG + lane;
  let id = token_id(t);
  if (e >= params.units || id < params.first_row || id - params.first_row >= params.num_rows) { return; }
  let w = load_eight(id - params.first_row, e);
  let i = (t * params.units + e) * 2u;
  y[i] = w.lo * params.scale;
  y[i + 1u] = w.hi * params.scale;
}
