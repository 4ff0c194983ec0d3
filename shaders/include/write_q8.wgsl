// write_kv of rope_kv_write in q8_0, see write_words.wgsl. Every lane calls it.
#include "include/q8_run.wgsl"
const KV_STRIDE = Q8_STRIDE;
var<workgroup> turned: array<vec4<f32>, Q8_WORDS>;

fn run_most(run: u32) -> f32 {
  var most = 0.0;
  for (var w = 8u * run; w < 8u * run + 8u; w++) { most = max(most, q8_most(turned[w])); }
  return most;
}

fn put_word(is_value: bool, at: u32, word: u32) {
  if (is_value) { v_cache[at] = word; } else { k_cache[at] = word; }
}

fn write_kv(live: bool, is_value: bool, row: u32, table_row: u32, lane: u32) {
  for (var i = lane; i < HEAD_DIM && live; i += WG) {
    if (is_value) {
      turned[i / 4u][i % 4u] = heads[i];
    } else {
      turned[i / 4u][i % 4u] = rotated(0u, i, table_row);
    }
  }
  workgroupBarrier();
  if (!live) { return; }
  for (var w = lane; w < Q8_WORDS; w += WG) {
    put_word(is_value, row + w, q8_word(turned[w], q8_inverse(run_most(w / 8u))));
  }
  for (var pair = lane; pair < Q8_STRIDE - Q8_WORDS; pair += WG) {
    var scales = q8_scale(run_most(2u * pair));
    if (64u * pair + 32u < HEAD_DIM) { scales |= q8_scale(run_most(2u * pair + 1u)) << 16u; }
    put_word(is_value, row + Q8_WORDS + pair, scales);
  }
}
