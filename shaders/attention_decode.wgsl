// attention_decode: one new token a row: rotates its heads, writes its key and value to the cache, and attends
//
// qk, v   [T, row width] f32 as projected: q then k heads; v heads from column v_column on. Row r's token is token r
// k_cache, v_cache  [num_slots, num_kv_heads, cells of a head] u32, in and out: f16 (cached_words), q8_0 (cached_q8)
// block_tables [rows, table_width] i32     context_lens [rows] i32, the new token included: it is the last position
// cos, sin  [P, rope_dim / 2] f32     q_norm, k_norm [HEAD_DIM] f32 (with heads_normed only)
// count   [1] u32: decode rows     params.window 0: no window
// out     attended values as ${target} says: partial sums for attention_decode_merge, or all there is with one split
// grid    (splits, num_kv_heads * ceil(group / 4), rows); a workgroup serves four query heads of one kv head
// HEAD_DIM, HALVES, BLOCK_SIZE, WG (lanes, and keys a tile; HEAD_DIM / KV_DIMS <= WG): const     kv: kv_wide, kv_narrow, or kv_q8
//
// The new key is scored first, by every lane alike, from workgroup memory: the cache is read only for older ones.
// A lane scores one key for all four heads (no reduction), then takes one Kv of dims of a few keys' values.
// Four heads are a vec4 and the columns of a matrix, so nothing relies on the compiler unrolling arrays.
struct Params {
  num_heads: u32, num_kv_heads: u32, table_width: u32, window: u32, splits: u32,
  qk_width: u32, v_width: u32, v_column: u32, rope_dim: u32, scale: f32, eps: f32
}
@group(0) @binding(0) var<storage, read> qk: array<f32>;
@group(0) @binding(1) var<storage, read> v: array<f32>;
@group(0) @binding(2) var<storage, read_write> k_cache: array<KvCell>;
@group(0) @binding(3) var<storage, read_write> v_cache: array<KvCell>;
@group(0) @binding(4) var<storage, read> block_tables: array<i32>;
@group(0) @binding(5) var<storage, read> context_lens: array<i32>;
@group(0) @binding(6) var<storage, read> cos_table: array<f32>;
@group(0) @binding(7) var<storage, read> sin_table: array<f32>;
@group(0) @binding(10) var<storage, read> count: array<u32>;
@group(0) @binding(14) var<uniform> params: Params;
#include "include/${kv}.wgsl"
alias Score = vec4<f32>;
#include "include/${score}.wgsl"
#include "include/splits.wgsl"

const WORDS = HEAD_DIM / KV_DIMS;
const STEPS = (WORDS + 7u) / 8u; // keys are read eight words at a time, so that few reads wait for others
const KEY_GROUPS = WG / WORDS; // lanes that share a word's dims, each with other keys
const STRIDE = 4u * KEY_GROUPS; // keys that the groups take four each
const HEADS_TOGETHER = 4u;
const KEY_HEAD = HEADS_TOGETHER; // the new key's place behind the query heads
const NEG_LARGE = -3.0e38;
var<workgroup> query: array<KvFour, STEPS * 8u>; // columns: heads
// The new key and value as cached. In workgroup memory as words, since a driver may drop a round trip through f16.
var<workgroup> new_key: array<KvWord, STEPS * 8u>;
var<workgroup> new_value: array<KvWord, WORDS>;
var<workgroup> weights: array<vec4<f32>, WG + 4u * STRIDE>; // of the tile's keys; zeros behind them
var<workgroup> rows_of: array<u32, WG>; // each key's first word in the caches
var<workgroup> sums: array<Kv, HEADS_TOGETHER * WG>; // by head, so that neighbouring lanes touch neighbouring words
#include "include/${cached}.wgsl"
#include "include/${fresh}.wgsl"
#include "include/rotate.wgsl"
#include "include/${queries}.wgsl"
#include "include/${heads}.wgsl"
#include "include/reduce4.wgsl"
#include "include/${target}.wgsl"

fn slot_row(row: u32, position: u32, kv_head: u32) -> u32 {
  let block = block_tables[row * params.table_width + position / BLOCK_SIZE];
  let slot = u32(block) * BLOCK_SIZE + position % BLOCK_SIZE;
  return (slot * params.num_kv_heads + kv_head) * KV_STRIDE;
}

fn rotated_kv(base: u32, w: u32, table_row: u32) -> Kv {
  let i = w * KV_DIMS;
  return kv_from(
    rotated(base, i, table_row), rotated(base, i + 1u, table_row),
    rotated(base, i + 2u, table_row), rotated(base, i + 3u, table_row));
}

// Words past the head are read from its last and meet zeros of the query.
fn key_word(key_row: u32, w: u32) -> KvWord { return cached_key(key_row, min(w, WORDS - 1u)); }

fn scores_of(key_row: u32) -> vec4<f32> {
  var score = vec4<f32>();
  for (var w = 0u; w < WORDS; w += 8u) {
    let k0 = key_word(key_row, w);
    let k1 = key_word(key_row, w + 1u);
    let k2 = key_word(key_row, w + 2u);
    let k3 = key_word(key_row, w + 3u);
    let k4 = key_word(key_row, w + 4u);
    let k5 = key_word(key_row, w + 5u);
    let k6 = key_word(key_row, w + 6u);
    let k7 = key_word(key_row, w + 7u);
    score += kv_unpack(k0) * query[w] + kv_unpack(k1) * query[w + 1u];
    score += kv_unpack(k2) * query[w + 2u] + kv_unpack(k3) * query[w + 3u];
    score += kv_unpack(k4) * query[w + 4u] + kv_unpack(k5) * query[w + 5u];
    score += kv_unpack(k6) * query[w + 6u] + kv_unpack(k7) * query[w + 7u];
  }
  return capped(score);
}

fn score_of_new() -> vec4<f32> {
  var score = vec4<f32>();
  for (var w = 0u; w < STEPS * 8u; w += 4u) {
    score += kv_unpack(new_key[w]) * query[w] + kv_unpack(new_key[w + 1u]) * query[w + 1u];
    score += kv_unpack(new_key[w + 2u]) * query[w + 2u] + kv_unpack(new_key[w + 3u]) * query[w + 3u];
  }
  return capped(score);
}

// Four keys' values of a word, and what they add to the sums. Keys past the tile weigh nothing.
struct Values { v0: KvWord, v1: KvWord, v2: KvWord, v3: KvWord }

fn load_values(key: u32, num_keys: u32, word: u32) -> Values {
  let last = num_keys - 1u;
  return Values(
    cached_value(rows_of[min(key, last)], word), cached_value(rows_of[min(key + 1u, last)], word),
    cached_value(rows_of[min(key + 2u, last)], word), cached_value(rows_of[min(key + 3u, last)], word));
}

fn weighted(v: Values, key: u32) -> KvFour {
  return KvFour(kv_unpack(v.v0), kv_unpack(v.v1), kv_unpack(v.v2), kv_unpack(v.v3))
    * transpose(mat4x4<f32>(weights[key], weights[key + 1u], weights[key + 2u], weights[key + 3u]));
}

@compute @workgroup_size(WG)
fn attention_decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.z;
  let rows = count[0];
  let context = u32(context_lens[row]);
  if (row >= rows) { return; }
  let share = share_of(group.x, context);
  if (group.x >= share.live) { return; }

  let heads_each = params.num_heads / params.num_kv_heads;
  let kv_head = group.y % params.num_kv_heads;
  let first = group.y / params.num_kv_heads * 4u; // within the kv head's query heads
  let first_head = kv_head * heads_each + first;
  let num_heads = min(4u, heads_each - first);
  let newest = context - 1u;
  let has_new = group.x + 1u == share.live; // the last split
  let end = min(share.end, newest); // of the keys that the cache holds
  let last = max(end, 1u) - 1u;
  var key_row = slot_row(row, min(share.begin + lane, last), kv_head);
  let new_row = slot_row(row, newest, kv_head);
  let first_query = row * params.qk_width + first_head * HEAD_DIM;
  let key_head = row * params.qk_width + (params.num_heads + kv_head) * HEAD_DIM;
  let v_row = row * params.v_width + params.v_column + kv_head * HEAD_DIM;
  prepare_heads(first_query, num_heads, key_head, lane);
  let table_row = newest * (params.rope_dim / 2u);
  let query_scale = params.scale * query_factor(newest);
  for (var i = lane; i < STEPS * 32u; i += WG) {
    let w = i / 4u;
    let column = i % 4u;
    var value = Kv();
    if (w < WORDS && column < num_heads) {
      value = rotated_kv(head_base(column, first_query + column * HEAD_DIM), w, table_row) * query_scale;
    }
    query[w][column] = value;
  }
  for (var i = WG + lane; i < WG + 4u * STRIDE; i += WG) { weights[i] = vec4<f32>(); }
  let word = lane % WORDS;
  let key_group = lane / WORDS;
  var key = Kv();
  var value = Kv();
  if (has_new && lane < WORDS) {
    let i = v_row + word * KV_DIMS;
    value = kv_from(v[i], v[i + 1u], v[i + 2u], v[i + 3u]);
    key = rotated_kv(head_base(KEY_HEAD, key_head), word, table_row);
  }
  keep_new(has_new, first == 0u, lane, new_row, key, value);
  workgroupBarrier(); // query, new key and new value are there

  var sum = KvFour();
  var most = vec4<f32>(NEG_LARGE);
  var total = vec4<f32>(); // of this lane's keys
  if (has_new) {
    most = score_of_new();
    if (lane == 0u) { total = vec4<f32>(1.0); }
    if (key_group == 0u) {
      let value = kv_unpack(new_value[word]);
      sum = KvFour(value, value, value, value);
    }
  }
  for (var tile = share.begin; tile < end; tile += WG) {
    let num_keys = min(WG, end - tile);
    rows_of[lane] = key_row;
    let score = select(vec4<f32>(NEG_LARGE), scores_of(key_row), lane < num_keys); // lanes past the end: the last key
    key_row = slot_row(row, min(tile + WG + lane, last), kv_head); // the next tile's
    let now = max(most, most_of(score, lane));
    let shrink = exp2(most - now);
    most = now;
    let weight = select(vec4<f32>(), exp2(score - most), lane < num_keys);
    weights[lane] = weight;
    total = total * shrink + weight;
    sum = KvFour(sum[0] * shrink.x, sum[1] * shrink.y, sum[2] * shrink.z, sum[3] * shrink.w);
    workgroupBarrier();
    if (key_group < KEY_GROUPS) {
      for (var key = 4u * key_group; key < num_keys; key += 4u * STRIDE) {
        let a = load_values(key, num_keys, word);
        let b = load_values(key + STRIDE, num_keys, word);
        let c = load_values(key + 2u * STRIDE, num_keys, word);
        let d = load_values(key + 3u * STRIDE, num_keys, word);
        sum += weighted(a, key) + weighted(b, key + STRIDE);
        sum += weighted(c, key + 2u * STRIDE) + weighted(d, key + 3u * STRIDE);
      }
    }
    if (tile + WG < end) { workgroupBarrier(); } // the tile's values are read
  }

  sums[lane] = sum[0];
  sums[WG + lane] = sum[1];
  sums[2u * WG + lane] = sum[2];
  sums[3u * WG + lane] = sum[3];
  let total_all = sum_of(total, lane);
  let head_row = row * params.num_heads + first_head;
  for (var i = lane; i < num_heads * WORDS; i += WG) {
    let column = i / WORDS;
    let w = i % WORDS;
    let at = column * WG + w;
    var value = Kv();
    var g = 0u;
    for (; g + 3u < KEY_GROUPS; g += 4u) {
      value += sums[at + g * WORDS] + sums[at + (g + 1u) * WORDS]
        + sums[at + (g + 2u) * WORDS] + sums[at + (g + 3u) * WORDS];
    }
    for (; g < KEY_GROUPS; g++) { value += sums[at + g * WORDS]; }
    attended(value, column, w, head_row, group.x, most[column], total_all[column]);
  }
  finish_attended(head_row, num_heads, lane);
}
