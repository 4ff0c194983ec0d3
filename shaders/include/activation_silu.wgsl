// gated: silu(gate) * up. The exponent is clamped where the result no longer changes: exp may overflow on some devices.
const PARTS = 2u; // a row holds gates, then ups

fn gated(gate: f32, up: f32) -> f32 { return gate / (1.0 + exp(min(-gate, 80.0))) * up; }
