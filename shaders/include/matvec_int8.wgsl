// A step of matvec: one unit of 32 weights against int8 activations.
//
// x_q [tokens, units * 32] int8, 4 a word, FINE as in include/quantize4.wgsl     x_scales [tokens, units * 2] f32 pairs (scale, scale * sum of 16)
#include "include/dot16.wgsl"
@group(0) @binding(2) var<storage, read> x_q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scales: array<vec2<f32>>;
alias Step = Unit;
// FINE: *_rest are the second int8 of the values.
struct Operand {
  lo: vec4<u32>, hi: vec4<u32>, lo_rest: vec4<u32>, hi_rest: vec4<u32>, lo_scale: vec2<f32>, hi_scale: vec2<f32>,
}

fn load_step(row: u32, u: u32) -> Step { return load_unit(row, u); }

// The activations of `token` that unit u meets.
fn load_operand(u: u32, token: u32) -> Operand {
  let place = unit_chunks(u) + x_row(token) * params.units * 2u;
  if (FINE) {
    let at = 2u * place;
    return Operand(
      x_q[at.x], x_q[at.y], x_q[at.x + 1u], x_q[at.y + 1u], x_scales[place.x], x_scales[place.y]);
  }
  let none = vec4<u32>();
  return Operand(x_q[place.x], x_q[place.y], none, none, x_scales[place.x], x_scales[place.y]);
}

fn chunk_dot(w: vec4<u32>, x: vec4<u32>, rest: vec4<u32>) -> f32 {
  let sum = f32(dot16(w, x));
  if (FINE) { return sum + f32(dot16(w, rest)) / 128.0; }
  return sum;
}

fn step_product(w: Step, x: Operand) -> f32 {
  let dot_lo = chunk_dot(w.lo, x.lo, x.lo_rest);
  let dot_hi = chunk_dot(w.hi, x.hi, x.hi_rest);
  if (!SPLIT_HALVES) {
    let product = w.scale.x * (x.lo_scale.x * dot_lo + x.hi_scale.x * dot_hi);
    if (HAS_MINIMUM) { return product - w.minimum.x * (x.lo_scale.y + x.hi_scale.y); }
    return product;
  }
  let product = w.scale.x * x.lo_scale.x * dot_lo + w.scale.y * x.hi_scale.x * dot_hi;
  if (HAS_MINIMUM) { return product - w.minimum.x * x.lo_scale.y - w.minimum.y * x.hi_scale.y; }
  return product;
}
