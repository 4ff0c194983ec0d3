// activate: the gate's function. GELU (bool const): tanh approximation of GELU, else SiLU.
// Arguments are clamped where the result no longer changes, since exp and tanh may overflow on some devices.
fn activate(gate: f32) -> f32 {
  if (GELU) {
    let inner = 0.7978845608 * (gate + 0.044715 * gate * gate * gate);
    return 0.5 * gate * (1.0 + tanh(clamp(inner, -15.0, 15.0)));
  }
  return gate / (1.0 + exp(min(-gate, 80.0)));
}
