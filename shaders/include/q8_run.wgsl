// q8_0 of the KV cache: 32 dims are a run, int8 times one f16 scale. A head's words, four dims each, come first, then
// a word for each two runs' scales. HEAD_DIM is a multiple of 32.
const Q8_WORDS = HEAD_DIM / 4u;
const Q8_STRIDE = Q8_WORDS + (HEAD_DIM / 32u + 1u) / 2u; // words of a head

// 127 / most, by which a run's values become int8.
fn q8_inverse(most: f32) -> f32 { return select(0.0, 127.0 / most, most > 0.0); }

// The scale of a run whose largest magnitude is `most`, as f16 in the low half.
fn q8_scale(most: f32) -> u32 { return pack2x16float(vec2<f32>(most / 127.0, 0.0)); }

fn q8_word(v: vec4<f32>, inverse: f32) -> u32 { return pack4xI8(vec4<i32>(round(v * inverse))); }

fn q8_most(v: vec4<f32>) -> f32 {
  let a = abs(v);
  return max(max(a.x, a.y), max(a.z, a.w));
}
