// A step of matvec: 8 float weights against float activations.
//
// x [tokens, units * 8] f32
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
alias Step = Eight;

fn load_step(row: u32, u: u32) -> Step { return load_eight(row, u); }

// What unit u, loaded as `w`, adds to the product with `token`.
fn step_product(w: Step, u: u32, token: u32) -> f32 {
  let i = (token * params.units + u) * 2u;
  return dot(w.lo, x[i]) + dot(w.hi, x[i + 1u]);
}
