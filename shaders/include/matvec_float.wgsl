// A step of matvec: 8 float weights against float activations.
//
// x [tokens, units * 8] f32
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
alias Step = Eight;
alias Operand = Eight;

fn load_step(row: u32, u: u32) -> Step { return load_eight(row, u); }

// The activations of `token` that unit u meets.
fn load_operand(u: u32, token: u32) -> Operand {
  let i = (x_row(token) * params.units + u) * 2u;
  return Operand(x[i], x[i + 1u]);
}

fn step_product(w: Step, x: Operand) -> f32 { return dot(w.lo, x.lo) + dot(w.hi, x.hi); }
