// Four activations to int8, given what their run is multiplied with: 127 / max|x|, 0 for a run of zeros.
fn inverse_scale(most: f32) -> f32 { return select(127.0 / most, 0.0, most == 0.0); }

fn quantize4(v: vec4<f32>, inverse: f32) -> u32 { return pack4xI8(vec4<i32>(round(v * inverse))); }

// FINE  const: activations are two int8 each. The second is what the first leaves of the value, in steps of a 128th of
// the first's; the 16 of a chunk lie behind its 16 first ones.
const REST = 1.0 / 128.0;

fn rest4(v: vec4<f32>, inverse: f32) -> u32 {
  let steps = v * inverse;
  return pack4xI8(vec4<i32>(round((steps - round(steps)) * 128.0)));
}

// Where the word of four values lies; FINE: its rest lies REST_WORDS behind.
const REST_WORDS = 4u;

fn word_place(chunk: u32, word: u32) -> u32 { return select(4u, 8u, FINE) * chunk + word; }

fn bytes_sum(word: u32) -> i32 { return dot4I8Packed(word, 0x01010101u); }
