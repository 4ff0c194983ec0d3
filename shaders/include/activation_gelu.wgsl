// gated: gelu(gate) * up, by GELU's tanh approximation. Clamped since tanh may overflow on some devices.
const PARTS = 2u; // a row holds gates, then ups

fn gated(gate: f32, up: f32) -> f32 {
  let inner = 0.7978845608 * (gate + 0.044715 * gate * gate * gate);
  return 0.5 * gate * (1.0 + tanh(clamp(inner, -15.0, 15.0))) * up;
}
