// shared_part: value i of the expert that all tokens share, times the sigmoid of the token's gate.
@group(0) @binding(2) var<storage, read> shared_values: array<f32>;
@group(0) @binding(3) var<storage, read> gates: array<f32>;

fn shared_part(token: u32, i: u32) -> f32 {
  return shared_values[i] / (1.0 + exp(min(-gates[token], 80.0)));
}
