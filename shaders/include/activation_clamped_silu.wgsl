// gated: g * sigmoid(1.702 g) * (u + 1), g being gate up to 7 and u being up within 7 of 0 (gpt-oss).
const PARTS = 2u; // a row holds gates, then ups

fn gated(gate: f32, up: f32) -> f32 {
  let g = min(gate, 7.0);
  return g / (1.0 + exp(min(-1.702 * g, 80.0))) * (clamp(up, -7.0, 7.0) + 1.0);
}
