// keep_new in q8_0, see fresh_words.wgsl. Passes through `sums`, which is free before the tiles.
fn run_most(at: u32) -> f32 {
  var most = 0.0;
  for (var w = at; w < at + 8u; w++) { most = max(most, q8_most(sums[w])); }
  return most;
}

fn quantized(at: u32) -> KvWord {
  let most = run_most(at / 8u * 8u); // WG is a multiple of 8, so keys and values begin at runs
  return KvWord(q8_word(sums[at], q8_inverse(most)), q8_scale(most));
}

fn keep_new(live: bool, writes: bool, lane: u32, row: u32, key: Kv, value: Kv) {
  if (lane < WORDS) {
    sums[lane] = key;
    sums[WG + lane] = value;
  }
  workgroupBarrier();
  if (!live || lane >= WORDS) { return; }
  let k = quantized(lane);
  let v = quantized(WG + lane);
  new_key[lane] = k;
  new_value[lane] = v;
  if (!writes) { return; }
  k_cache[row + lane] = k.x;
  v_cache[row + lane] = v.x;
  if (lane % 16u == 0u) {
    var k_pair = k.y;
    var v_pair = v.y;
    if (lane + 8u < WORDS) {
      k_pair |= q8_scale(run_most(lane + 8u)) << 16u;
      v_pair |= q8_scale(run_most(WG + lane + 8u)) << 16u;
    }
    k_cache[row + Q8_WORDS + lane / 16u] = k_pair;
    v_cache[row + Q8_WORDS + lane / 16u] = v_pair;
  }
}
