// gather_rows: y[r, :] = x[indices[r], :]; a row whose index is negative is left as it is
//
// x       [T, width] f32     indices  [rows] i32     y  [rows, width] f32
// grid    (ceil(width / WG), rows, 1); one lane a value
// WG      const
struct Params { width: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> indices: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn gather_rows(@builtin(global_invocation_id) thread: vec3<u32>) {
  let index = indices[thread.y];
  if (thread.x >= params.width || index < 0) { return; }
  y[thread.y * params.width + thread.x] = x[u32(index) * params.width + thread.x];
}
