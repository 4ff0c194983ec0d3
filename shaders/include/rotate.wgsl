// rotated(base, i, table_row): dim i of the head that lies at `base` in `heads`, after rotation.
// Needs heads, cos_table, sin_table, params.rope_dim, HALVES.
fn rotated(base: u32, i: u32, table_row: u32) -> f32 {
  if (i >= params.rope_dim) { return heads[base + i]; }
  let middle = params.rope_dim / 2u;
  let first = select(i % 2u == 0u, i < middle, HALVES);
  let distance = select(1u, middle, HALVES);
  let partner = select(i - distance, i + distance, first);
  let at = table_row + select(i / 2u, i % middle, HALVES);
  let crossed = heads[base + partner] * sin_table[at];
  return heads[base + i] * cos_table[at] + select(crossed, -crossed, first);
}
