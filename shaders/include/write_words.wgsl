// write_kv of rope_kv_write in f16: the head in workgroup memory, rotated if it is a key, to the cache.
const KV_STRIDE = HEAD_DIM / 2u; // words of a head

fn write_kv(live: bool, is_value: bool, row: u32, table_row: u32, lane: u32) {
  if (!live) { return; }
  for (var w = lane; w < KV_STRIDE; w += WG) {
    if (is_value) {
      v_cache[row + w] = pack2x16float(vec2<f32>(heads[2u * w], heads[2u * w + 1u]));
    } else {
      k_cache[row + w] =
        pack2x16float(vec2<f32>(rotated(0u, 2u * w, table_row), rotated(0u, 2u * w + 1u, table_row)));
    }
  }
}
