// widen: y[r, i] = x[r, i] in longer rows, for kernels that read whole units of them
//
// x       [rows, width] f32     y  [rows, y_width] f32: what lies behind width stays as it is
// count   [1] u32: rows from it on are not touched
// grid    (ceil(width / WG), rows, 1); one lane a value     WG  const
struct Params { width: u32, y_width: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> count: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn widen(@builtin(global_invocation_id) thread: vec3<u32>) {
  if (thread.x >= params.width || thread.y >= count[0]) { return; }
  y[thread.y * params.y_width + thread.x] = x[thread.y * params.width + thread.x];
}
