// Heads of attention_decode_subgroups after rms norm, by q_norm or k_norm; the lanes of a head call it together.
@group(0) @binding(8) var<storage, read> q_norm: array<vec4<f32>>;
@group(0) @binding(9) var<storage, read> k_norm: array<vec4<f32>>;

fn sum_of_parts(value: f32) -> f32 {
  var x = value;
  for (var mask = 1u; mask < PARTS; mask = mask * 2u) { x += subgroupShuffleXor(x, mask); }
  return x;
}

fn normed(x: Eight, part: u32, is_key: bool) -> Eight {
  let i = 2u * min(part, OCTETS - 1u);
  var w = Eight(q_norm[i], q_norm[i + 1u]);
  if (is_key) { w = Eight(k_norm[i], k_norm[i + 1u]); }
  let squares = select(0.0, dot(x.lo, x.lo) + dot(x.hi, x.hi), part < OCTETS);
  let scale = inverseSqrt(sum_of_parts(squares) / f32(HEAD_DIM) + params.eps);
  return Eight(x.lo * scale * w.lo, x.hi * scale * w.hi);
}
