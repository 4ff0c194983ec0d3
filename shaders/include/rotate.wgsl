// rotated(base, i, table_row): dim i of a head after rotation, head_value(base + i) being it before.
// Needs head_value, cos_table, sin_table, params.rope_dim, HALVES.
fn rotated(base: u32, i: u32, table_row: u32) -> f32 {
  if (i >= params.rope_dim) { return head_value(base + i); }
  let middle = params.rope_dim / 2u;
  let first = select(i % 2u == 0u, i < middle, HALVES);
  let distance = select(1u, middle, HALVES);
  let partner = select(i - distance, i + distance, first);
  let at = table_row + select(i / 2u, i % middle, HALVES);
  let crossed = head_value(base + partner) * sin_table[at];
  return head_value(base + i) * cos_table[at] + select(crossed, -crossed, first);
}
