// gated: gelu(x) where there are no gates, by GELU's tanh approximation. Clamped since tanh may overflow on some devices.
const PARTS = 1u; // a row holds the values alone

fn gated(x: f32, same: f32) -> f32 {
  let inner = 0.7978845608 * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + tanh(clamp(inner, -15.0, 15.0)));
}
