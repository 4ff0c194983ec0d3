// How tile_int8 and tile_int8_minima read activations: words, and the scales of two runs.
// The half of unit u that is chunk y of it, or chunk x.
fn chunk_of(u: u32, second: bool) -> u32 { return select(unit_chunks(u).x, unit_chunks(u).y, second); }

// FINE: `rest` 1 for the second int8 of the values, whose scale is a 128th; the first ones have the sums of both.
fn fetch_word(token: u32, first_unit: u32, word: u32, rest: u32) -> Word {
  let u = first_unit + select(word >> 1u, (word >> 2u) * 2u + (word & 1u), SPLIT_HALVES);
  let second = (select(word, word >> 1u, SPLIT_HALVES) & 1u) == 1u;
  var found: Word;
  if (!RAGGED || u < params.units) {
    let chunk = token * params.units * 2u + chunk_of(u, second);
    if (FINE) { found = x_q[2u * chunk + rest]; } else { found = x_q[chunk]; }
  }
  return found;
}

// Of the two runs of units u and u + 1.
fn fetch_scales(token: u32, u: u32, rest: u32) -> XScales {
  let i = token * params.units;
  var scales: XScales;
  if (!RAGGED || u < params.units) { scales.a = x_scales[i + (chunk_of(u, false) >> 1u)]; }
  if (!RAGGED || u + 1u < params.units) {
    scales.b = x_scales[i + select(u + 1u, chunk_of(u, true) >> 1u, SPLIT_HALVES)];
  }
  if (FINE && rest == 1u) {
    let steps = vec4<f32>(1.0 / 128.0, 0.0, 1.0 / 128.0, 0.0);
    scales = XScales(scales.a * steps, scales.b * steps);
  }
  return scales;
}
