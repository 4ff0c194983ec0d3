// finish_logits: logits *= scale, then cap * tanh(logits / cap) unless cap is 0, in place
//
// logits  [rows, width] f32     grid  (ceil(width / WG), rows, 1); one lane a value
// WG, const
struct Params { width: u32, scale: f32, cap: f32 }
@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn finish_logits(@builtin(global_invocation_id) thread: vec3<u32>) {
  if (thread.x >= params.width) { return; }
  let i = thread.y * params.width + thread.x;
  let y = logits[i] * params.scale;
  // tanh may overflow far out.
  if (params.cap == 0.0) { logits[i] = y; } else { logits[i] = params.cap * tanh(clamp(y / params.cap, -15.0, 15.0)); }
}
