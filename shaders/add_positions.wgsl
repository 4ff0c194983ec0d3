// add_positions: y[t, i] += table[positions[t], i]
//
// table   [P, width] f32     positions  [tokens] i32     y  [tokens, width] f32, in place
// count   [1] u32: tokens from it on are not touched
// grid    (ceil(width / WG), tokens, 1); one lane a value     WG  const
struct Params { width: u32 }
@group(0) @binding(0) var<storage, read> table: array<f32>;
@group(0) @binding(1) var<storage, read> positions: array<i32>;
@group(0) @binding(2) var<storage, read> count: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn add_positions(@builtin(global_invocation_id) thread: vec3<u32>) {
  if (thread.x >= params.width || thread.y >= count[0]) { return; }
  y[thread.y * params.width + thread.x] += table[u32(positions[thread.y]) * params.width + thread.x];
}
