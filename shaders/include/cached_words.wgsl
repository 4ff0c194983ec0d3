// Words of cached heads in f16: cell `row` is a head's first. Needs k_cache, v_cache, WORDS.
const KV_STRIDE = WORDS; // cells of a head

fn cached_key(row: u32, w: u32) -> KvWord { return k_cache[row + w]; }
fn cached_value(row: u32, w: u32) -> KvWord { return v_cache[row + w]; }
