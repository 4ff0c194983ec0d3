// keep_new in f16: the newest token's key and value (lane's word of them) as they are cached, for this workgroup's
// own heads, and in the cache where it `writes`. Every lane calls it; a barrier follows.
fn keep_new(live: bool, writes: bool, lane: u32, row: u32, key: Kv, value: Kv) {
  if (!live || lane >= STEPS * 8u) { return; }
  var word = KvWord();
  if (lane < WORDS) {
    word = kv_pack(key);
    let value_word = kv_pack(value);
    new_value[lane] = value_word;
    if (writes) {
      k_cache[row + lane] = word;
      v_cache[row + lane] = value_word;
    }
  }
  new_key[lane] = word;
}
