// Activations of matvec whose RMS norm still lacks its 1 / rms: rounding to int8 is the same before and after it.
//
// squares [tokens, units] f32 pairs: sums of squares of each 16 values before the norm; params.eps is the norm's
@group(0) @binding(11) var<storage, read> squares: array<vec2<f32>>;
const NORMED = true;
fn squares_of(u: u32, token: u32) -> f32 {
  let pair = squares[x_row(token) * params.units + u];
  return pair.x + pair.y;
}
fn norm_scale(squares: f32) -> f32 { return inverseSqrt(squares / f32(params.units * 32u) + params.eps); }
