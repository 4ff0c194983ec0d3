// How tile_int8 and tile_int8_minima read activations: words, and the scales of two runs.
// The half of unit u that is chunk y of it, or chunk x.
fn chunk_of(u: u32, second: bool) -> u32 { return select(unit_chunks(u).x, unit_chunks(u).y, second); }

fn fetch_word(token: u32, first_unit: u32, word: u32) -> Word {
  let u = first_unit + select(word >> 1u, (word >> 2u) * 2u + (word & 1u), SPLIT_HALVES);
  let second = (select(word, word >> 1u, SPLIT_HALVES) & 1u) == 1u;
  var found: Word;
  if (!RAGGED || u < params.units) { found = x_q[token * params.units * 2u + chunk_of(u, second)]; }
  return found;
}

// Of the two runs of units u and u + 1.
fn fetch_scales(token: u32, u: u32) -> XScales {
  let i = token * params.units;
  var scales: XScales;
  if (!RAGGED || u < params.units) { scales.a = x_scales[i + (chunk_of(u, false) >> 1u)]; }
  if (!RAGGED || u + 1u < params.units) {
    scales.b = x_scales[i + select(u + 1u, chunk_of(u, true) >> 1u, SPLIT_HALVES)];
  }
  return scales;
}
