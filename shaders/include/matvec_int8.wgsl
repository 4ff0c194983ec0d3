// A step of matvec: one unit of 32 weights against int8 activations.
//
// x_q [tokens, units * 32] int8, 4 a word     x_scales [tokens, units * 2] f32 pairs (scale, scale * sum of 16)
#include "include/dot16.wgsl"
@group(0) @binding(2) var<storage, read> x_q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scales: array<vec2<f32>>;
alias Step = Unit;

fn load_step(row: u32, u: u32) -> Step { return load_unit(row, u); }

// What unit u, loaded as `w`, adds to the product with `token`.
fn step_product(w: Step, u: u32, token: u32) -> f32 {
  let place = unit_chunks(u) + token * params.units * 2u;
  let dot_lo = dot16(w.lo, x_q[place.x]);
  let dot_hi = dot16(w.hi, x_q[place.y]);
  let lo = x_scales[place.x];
  if (!SPLIT_HALVES) {
    let product = w.scale.x * lo.x * f32(dot_lo + dot_hi);
    if (HAS_MINIMUM) { return product - w.minimum.x * (lo.y + x_scales[place.y].y); }
    return product;
  }
  let hi = x_scales[place.y];
  let product = w.scale.x * lo.x * f32(dot_lo) + w.scale.y * hi.x * f32(dot_hi);
  if (HAS_MINIMUM) { return product - w.minimum.x * lo.y - w.minimum.y * hi.y; }
  return product;
}
