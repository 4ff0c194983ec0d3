// add_experts: residual[t, i] += sum over a token's experts of weights[t, e] * y[t, e, i], and what all tokens share
//
// y       [tokens, USED, width] f32     weights  [tokens, USED] f32     residual  [tokens, width] f32, in place
// shared  shared_none, or shared_gated: shared [tokens, width] f32 times the sigmoid of gates [tokens, 1] f32
// count   [1] u32: tokens from it on are not touched
// grid    (ceil(width / WG), tokens, 1); one lane a value     USED, WG: const
struct Params { width: u32 }
@group(0) @binding(0) var<storage, read> y: array<f32>;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read> count: array<u32>;
@group(0) @binding(5) var<storage, read_write> residual: array<f32>;
@group(0) @binding(6) var<uniform> params: Params;
#include "include/${shared}.wgsl"

@compute @workgroup_size(WG)
fn add_experts(@builtin(global_invocation_id) thread: vec3<u32>) {
  let token = thread.y;
  if (thread.x >= params.width || token >= count[0]) { return; }
  let i = token * params.width + thread.x;
  var sum = shared_part(token, i);
  for (var e = 0u; e < USED; e++) {
    let pair = token * USED + e;
    sum += weights[pair] * y[pair * params.width + thread.x];
  }
  residual[i] += sum;
}
