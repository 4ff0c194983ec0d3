// silu_mul: y[r, i] = gated(gate_up[r, i], gate_up[r, width + i]), or of gate_up[r, i] alone
//
// gate_up [rows, PARTS * width] f32     y  [rows, width] f32
// grid    (ceil(width / WG), rows, 1); one lane a value
// activation  activation_silu, _gelu, _clamped_silu, or _gelu_alone, _relu_squared_alone     WG  const
struct Params { width: u32 }
@group(0) @binding(0) var<storage, read> gate_up: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
#include "include/${activation}.wgsl"

@compute @workgroup_size(WG)
fn silu_mul(@builtin(global_invocation_id) thread: vec3<u32>) {
  if (thread.x >= params.width) { return; }
  let gate = thread.y * PARTS * params.width + thread.x;
  y[thread.y * params.width + thread.x] = gated(gate_up[gate], gate_up[gate + (PARTS - 1u) * params.width]);
}
