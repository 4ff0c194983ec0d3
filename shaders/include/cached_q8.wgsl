// Words of cached heads in q8_0, each with its scale: cell `row` is a head's first. Needs k_cache, v_cache.
const KV_STRIDE = Q8_STRIDE; // cells of a head

fn scale_of(pair: u32, w: u32) -> u32 { return (pair >> (w / 8u % 2u * 16u)) & 0xffffu; }

fn cached_key(row: u32, w: u32) -> KvWord {
  return KvWord(k_cache[row + w], scale_of(k_cache[row + Q8_WORDS + w / 16u], w));
}

fn cached_value(row: u32, w: u32) -> KvWord {
  return KvWord(v_cache[row + w], scale_of(v_cache[row + Q8_WORDS + w / 16u], w));
}
