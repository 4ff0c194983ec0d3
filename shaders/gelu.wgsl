// gelu: y = x * (1 + erf(x / sqrt(2))) / 2, the exact form and not the tanh one
//
// x       [rows, width] f32     y  [rows, width] f32
// grid    (ceil(width / WG), rows, 1); one lane a value
// WG      const
struct Params { width: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

// 1 - erf(z) for z >= 0, off by 1.5e-7 at most (Abramowitz and Stegun 7.1.26), as in the reference.
fn erf_rest(z: f32) -> f32 {
  let t = 1.0 / (1.0 + 0.3275911 * z);
  let sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return sum * exp(-min(z * z, 80.0));
}

@compute @workgroup_size(WG)
fn gelu(@builtin(global_invocation_id) thread: vec3<u32>) {
  if (thread.x >= params.width) { return; }
  let i = thread.y * params.width + thread.x;
  let v = x[i];
  let rest = erf_rest(abs(v) * 0.70710678);
  y[i] = 0.5 * v * select(rest, 2.0 - rest, v >= 0.0);
}
