// attention_prefill: tiles of up to BQ consecutive query tokens of one row against its KV blocks
//
// q       [T, num_heads, HEAD_DIM] f32
// k_cache, v_cache  [num_slots, num_kv_heads, cells of a head] u32: f16 (cached_words), q8_0 (cached_q8)
// block_tables [R, table_width] i32     context_lens [R] i32, the row's last query included
// tiles   [max_tiles, 4] i32: row, first token, number of tokens (<= BQ), position of the first token
// tile_count [1] u32: tiles from it on are not touched
// params.window 0: no window     params.ahead: tokens behind its own that a query sees too
// y       [T, num_heads, HEAD_DIM] f32, out
// grid    (num_heads, max_tiles, SLICES); WG = 4 * BQ lanes as BQ / 4 rows of 16
// HEAD_DIM, BQ (16, 32, 64), WG, VALUE_KEYS (keys of values staged at once, divides 64, at most 4 words a lane): const
// SLICES  workgroups that share a tile's output, each with up to 64 words of a head; every one computes all scores: const
// kv      kv_wide, kv_narrow or kv_q8     score: score_plain or score_capped     sinks: or sinks_none
//
// A lane owns 4 queries x 4 keys of the scores and 4 queries x up to 4 Kv of the output, all as matrices of four
// columns, so nothing relies on the compiler unrolling arrays. Queries and keys pass through workgroup memory four
// words at a time, values VALUE_KEYS keys at a time, in the same memory; what comes next is read meanwhile.
struct Params {
  num_heads: u32, num_kv_heads: u32, block_size: u32, table_width: u32, window: u32, ahead: u32, scale: f32
}
@group(0) @binding(0) var<storage, read> q: array<Kv>;
@group(0) @binding(1) var<storage, read> k_cache: array<KvCell>;
@group(0) @binding(2) var<storage, read> v_cache: array<KvCell>;
@group(0) @binding(3) var<storage, read> block_tables: array<i32>;
@group(0) @binding(4) var<storage, read> context_lens: array<i32>;
@group(0) @binding(5) var<storage, read> tiles: array<vec4<i32>>;
@group(0) @binding(6) var<storage, read> tile_count: array<u32>;
@group(0) @binding(7) var<storage, read_write> y: array<Kv>;
@group(0) @binding(14) var<uniform> params: Params;
#include "include/${kv}.wgsl"
alias Score = vec4<f32>;
#include "include/${score}.wgsl"
#include "include/${sinks}.wgsl"

const WORDS = HEAD_DIM / KV_DIMS;
const SLICE = (WORDS + SLICES - 1u) / SLICES; // words of values and of output of a workgroup
const KEYS = 64u; // keys a tile: 16 lanes of 4
const CHUNK = 4u; // words of queries and keys staged at once
const Q_STRIDE = BQ + 2u; // two columns of padding spread a lane's four words over the banks
const K_STRIDE = KEYS + 2u;
const K_STAGE = CHUNK * Q_STRIDE; // where keys begin in the stage
const K_EACH = KEYS / BQ; // keys that a lane brings to the stage
const V_EACH = (VALUE_KEYS * SLICE + WG - 1u) / WG; // words of values that it brings
const LANE_KEYS = VALUE_KEYS / 4u; // lanes of a query whose keys are in the stage
const NEG_LARGE = -3.0e38;
var<workgroup> stage: array<Kv, max(K_STAGE + CHUNK * K_STRIDE, VALUE_KEYS * SLICE)>;
var<workgroup> weights: array<vec4<f32>, BQ * LANE_KEYS>; // of a query and the keys in the stage, four a lane
var<workgroup> parts: array<f32, 16u * (BQ + 1u)>; // one result of each lane of a query
var<workgroup> row_max: array<f32, BQ>;
var<workgroup> row_shrink: array<f32, BQ>;
var<workgroup> rows_of: array<u32, 2u * KEYS>; // each key's first word in the caches, of this tile of keys and the next

#include "include/${cached}.wgsl"

struct Keys { q: Kv, k0: KvWord, k1: KvWord, k2: KvWord, k3: KvWord }
struct Values { v0: KvWord, v1: KvWord, v2: KvWord, v3: KvWord }

fn fetch_key(rows: u32, key: u32, word: u32) -> KvWord {
  var found: KvWord;
  if (word < WORDS) { found = cached_key(rows_of[rows + key], word); }
  return found;
}

// A word of a query and of each of this lane's keys; query_word is the word's place where the lane has a query.
fn fetch_keys(chunk: u32, rows: u32, query_word: u32, has_query: bool, lane: u32) -> Keys {
  let word = chunk + lane % CHUNK;
  let key = lane / CHUNK;
  var found: Keys;
  if (has_query && word < WORDS) { found.q = q[query_word + chunk]; }
  found.k0 = fetch_key(rows, key, word);
  if (K_EACH > 1u) { found.k1 = fetch_key(rows, key + BQ, word); }
  if (K_EACH > 2u) { found.k2 = fetch_key(rows, key + 2u * BQ, word); }
  if (K_EACH > 2u) { found.k3 = fetch_key(rows, key + 3u * BQ, word); }
  return found;
}

// A lane reads keys 4 * column + 0..3: kept 16 apart, so that lanes read side by side.
fn put_key(word: KvWord, key: u32, part: u32) {
  stage[K_STAGE + part * K_STRIDE + key % 4u * 16u + key / 4u] = kv_unpack(word);
}

fn put_keys(keys: Keys, lane: u32) {
  let part = lane % CHUNK;
  let key = lane / CHUNK;
  stage[part * Q_STRIDE + key] = keys.q * params.scale;
  put_key(keys.k0, key, part);
  if (K_EACH > 1u) { put_key(keys.k1, key + BQ, part); }
  if (K_EACH > 2u) { put_key(keys.k2, key + 2u * BQ, part); }
  if (K_EACH > 2u) { put_key(keys.k3, key + 3u * BQ, part); }
}

// The slice's word w of a head; beyond the last it is that one, which is not stored.
fn word_of(slice: u32, w: u32) -> u32 { return select(min(slice + w, WORDS - 1u), w, SLICES == 1u); }

fn fetch_value(rows: u32, slice: u32, i: u32) -> KvWord {
  var found: KvWord;
  if (VALUE_KEYS * SLICE % WG == 0u || i < VALUE_KEYS * SLICE) {
    found = cached_value(rows_of[rows + i / SLICE], word_of(slice, i % SLICE));
  }
  return found;
}

fn fetch_values(rows: u32, slice: u32, lane: u32) -> Values {
  var found: Values;
  found.v0 = fetch_value(rows, slice, lane);
  if (V_EACH > 1u) { found.v1 = fetch_value(rows, slice, lane + WG); }
  if (V_EACH > 2u) { found.v2 = fetch_value(rows, slice, lane + 2u * WG); }
  if (V_EACH > 3u) { found.v3 = fetch_value(rows, slice, lane + 3u * WG); }
  return found;
}

fn put_value(word: KvWord, i: u32) {
  if (VALUE_KEYS * SLICE % WG == 0u || i < VALUE_KEYS * SLICE) { stage[i] = kv_unpack(word); }
}

fn put_values(values: Values, lane: u32) {
  put_value(values.v0, lane);
  if (V_EACH > 1u) { put_value(values.v1, lane + WG); }
  if (V_EACH > 2u) { put_value(values.v2, lane + 2u * WG); }
  if (V_EACH > 3u) { put_value(values.v3, lane + 3u * WG); }
}

// rows_of for the keys from `first` on; beyond the last key it repeats that one, which is masked.
fn find_rows(rows: u32, first: u32, end: u32, table: u32, kv_head: u32, lane: u32) {
  if (lane >= KEYS) { return; }
  let key = min(first + lane, end - 1u);
  let slot = u32(block_tables[table + key / params.block_size]) * params.block_size + key % params.block_size;
  rows_of[rows + lane] = (slot * params.num_kv_heads + kv_head) * KV_STRIDE;
}

fn shrunk(sum: KvFour, by: vec4<f32>) -> KvFour {
  return KvFour(sum[0] * by.x, sum[1] * by.y, sum[2] * by.z, sum[3] * by.w);
}

// Scores of four keys for the query at `position`, NEG_LARGE where it does not see the key; keys stop before `end`.
fn masked(score: vec4<f32>, keys: vec4<u32>, position: u32, end: u32) -> vec4<f32> {
  var hidden = keys > vec4<u32>(min(position + params.ahead, end - 1u));
  if (params.window > 0u) { hidden = hidden | (keys + vec4<u32>(params.window) <= vec4<u32>(position)); }
  return select(capped(score), vec4<f32>(NEG_LARGE), hidden);
}

// exp(score - most), 0 for hidden keys even where all keys so far are hidden.
fn weight_of(score: vec4<f32>, most: f32) -> vec4<f32> {
  return select(exp(score - vec4<f32>(most)), vec4<f32>(), score <= vec4<f32>(0.5 * NEG_LARGE));
}

fn total_of(head: u32, query: u32) -> f32 {
  var total = sink_weight(head, row_max[query]);
  for (var i = 0u; i < 16u; i++) { total += parts[i * (BQ + 1u) + query]; }
  return total;
}

fn values_at(key: u32, word: u32) -> KvFour {
  let at = key * SLICE + min(word, SLICE - 1u);
  return KvFour(stage[at], stage[at + SLICE], stage[at + 2u * SLICE], stage[at + 3u * SLICE]);
}

fn add_value(sum: Kv, values: KvFour, by: vec4<f32>) -> Kv {
  return fma(values[0], Kv(by.x), fma(values[1], Kv(by.y), fma(values[2], Kv(by.z), fma(values[3], Kv(by.w), sum))));
}

// sums + four keys' values, weighted. Written as fma, since a product of matrices is multiplied, then added.
fn add_values(sums: KvFour, values: KvFour, by: mat4x4<f32>) -> KvFour {
  return KvFour(
    add_value(sums[0], values, by[0]), add_value(sums[1], values, by[1]),
    add_value(sums[2], values, by[2]), add_value(sums[3], values, by[3]));
}

// Writes the slice's word of dims of four queries, those that exist.
fn store(at: u32, slice: u32, w: u32, query: u32, num_queries: u32, sum: KvFour) {
  let word = slice + w;
  if (w >= SLICE || word >= WORDS) { return; }
  let stride = params.num_heads * WORDS;
  if (query < num_queries) { y[at + word] = sum[0]; }
  if (query + 1u < num_queries) { y[at + stride + word] = sum[1]; }
  if (query + 2u < num_queries) { y[at + 2u * stride + word] = sum[2]; }
  if (query + 3u < num_queries) { y[at + 3u * stride + word] = sum[3]; }
}

@compute @workgroup_size(WG)
fn attention_prefill(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  if (group.y >= tile_count[0]) { return; }
  let tile = vec4<u32>(tiles[tile_count[0] - 1u - group.y]); // a row's last tiles, which take longest, begin first
  let first_token = tile.y;
  let num_queries = tile.z;
  let first_position = tile.w;
  let head = group.x;
  let slice = select(group.z * SLICE, 0u, SLICES == 1u); // its first word
  let kv_head = head / (params.num_heads / params.num_kv_heads);
  let end = min(first_position + num_queries + params.ahead, u32(context_lens[tile.x]));
  var begin = 0u;
  if (params.window > 0u) { begin = first_position + 1u - min(first_position + 1u, params.window); }

  let column = lane % 16u;
  let query = lane / 16u * 4u; // the first of this lane's four
  let position = first_position + query;
  let table = tile.x * params.table_width;
  var sum0 = KvFour();
  var sum1 = KvFour();
  var sum2 = KvFour();
  var sum3 = KvFour();
  var total = vec4<f32>(); // of this lane's keys, one a query
  if (lane < BQ) { row_max[lane] = NEG_LARGE; }

  let query_word = ((first_token + lane / CHUNK) * params.num_heads + head) * WORDS + lane % CHUNK;
  let has_query = lane / CHUNK < num_queries;
  var rows = 0u;
  find_rows(rows, begin, end, table, kv_head, lane);
  workgroupBarrier();
  var keys = fetch_keys(0u, rows, query_word, has_query, lane);
  var values: Values;
  for (var key_tile = begin; key_tile < end; key_tile += KEYS) {
    find_rows(KEYS - rows, key_tile + KEYS, end, table, kv_head, lane);
    var scores = mat4x4<f32>(); // columns: queries, rows: keys
    for (var chunk = 0u; chunk < WORDS; chunk += CHUNK) {
      workgroupBarrier(); // the stage is free
      put_keys(keys, lane);
      workgroupBarrier();
      if (chunk + CHUNK < WORDS) {
        keys = fetch_keys(chunk + CHUNK, rows, query_word, has_query, lane);
      } else {
        values = fetch_values(rows, slice, lane);
      }
      for (var i = 0u; i < CHUNK; i++) {
        let a = i * Q_STRIDE + query;
        let b = K_STAGE + i * K_STRIDE + column;
        let four = KvFour(stage[b], stage[b + 16u], stage[b + 32u], stage[b + 48u]);
        let k = transpose(four);
        scores = mat4x4<f32>(
          kv_dot(scores[0], k, stage[a]), kv_dot(scores[1], k, stage[a + 1u]),
          kv_dot(scores[2], k, stage[a + 2u]), kv_dot(scores[3], k, stage[a + 3u]));
      }
    }

    let key_positions = vec4<u32>(key_tile + 4u * column) + vec4<u32>(0u, 1u, 2u, 3u);
    let s0 = masked(scores[0], key_positions, position, end);
    let s1 = masked(scores[1], key_positions, position + 1u, end);
    let s2 = masked(scores[2], key_positions, position + 2u, end);
    let s3 = masked(scores[3], key_positions, position + 3u, end);
    let at = column * (BQ + 1u) + query;
    parts[at] = max(max(s0.x, s0.y), max(s0.z, s0.w));
    parts[at + 1u] = max(max(s1.x, s1.y), max(s1.z, s1.w));
    parts[at + 2u] = max(max(s2.x, s2.y), max(s2.z, s2.w));
    parts[at + 3u] = max(max(s3.x, s3.y), max(s3.z, s3.w));
    workgroupBarrier();
    if (lane < BQ) {
      var most = row_max[lane];
      for (var i = 0u; i < 16u; i++) { most = max(most, parts[i * (BQ + 1u) + lane]); }
      row_shrink[lane] = exp(row_max[lane] - most);
      row_max[lane] = most;
    }
    workgroupBarrier();
    let w0 = weight_of(s0, row_max[query]);
    let w1 = weight_of(s1, row_max[query + 1u]);
    let w2 = weight_of(s2, row_max[query + 2u]);
    let w3 = weight_of(s3, row_max[query + 3u]);
    let ones = vec4<f32>(1.0);
    let shrink = vec4<f32>(
      row_shrink[query], row_shrink[query + 1u], row_shrink[query + 2u], row_shrink[query + 3u]);
    total = total * shrink + vec4<f32>(dot(w0, ones), dot(w1, ones), dot(w2, ones), dot(w3, ones));
    sum0 = shrunk(sum0, shrink);
    sum1 = shrunk(sum1, shrink);
    sum2 = shrunk(sum2, shrink);
    sum3 = shrunk(sum3, shrink);
    let live = min(KEYS, end - key_tile);
    for (var first = 0u; first < live; first += VALUE_KEYS) {
      if (first > 0u) { workgroupBarrier(); } // the stage is free
      put_values(values, lane);
      if (column / LANE_KEYS == first / VALUE_KEYS) {
        let row = query * LANE_KEYS + column % LANE_KEYS;
        weights[row] = w0;
        weights[row + LANE_KEYS] = w1;
        weights[row + 2u * LANE_KEYS] = w2;
        weights[row + 3u * LANE_KEYS] = w3;
      }
      workgroupBarrier();
      if (first + VALUE_KEYS < live) {
        values = fetch_values(rows + first + VALUE_KEYS, slice, lane);
      } else if (key_tile + KEYS < end) {
        keys = fetch_keys(0u, KEYS - rows, query_word, has_query, lane);
      }
      for (var key = 0u; key < VALUE_KEYS; key += 4u) {
        let from_row = query * LANE_KEYS + key / 4u;
        let by = mat4x4<f32>( // columns: queries, rows: keys
          weights[from_row], weights[from_row + LANE_KEYS],
          weights[from_row + 2u * LANE_KEYS], weights[from_row + 3u * LANE_KEYS]);
        sum0 = add_values(sum0, values_at(key, column), by);
        if (SLICE > 16u) { sum1 = add_values(sum1, values_at(key, column + 16u), by); }
        if (SLICE > 32u) { sum2 = add_values(sum2, values_at(key, column + 32u), by); }
        if (SLICE > 48u) { sum3 = add_values(sum3, values_at(key, column + 48u), by); }
      }
    }
    rows = KEYS - rows;
  }

  let at = column * (BQ + 1u) + query;
  parts[at] = total.x;
  parts[at + 1u] = total.y;
  parts[at + 2u] = total.z;
  parts[at + 3u] = total.w;
  workgroupBarrier();
  let by = vec4<f32>(1.0) / vec4<f32>(
    total_of(head, query), total_of(head, query + 1u), total_of(head, query + 2u), total_of(head, query + 3u));
  let out = ((first_token + query) * params.num_heads + head) * WORDS;
  store(out, slice, column, query, num_queries, shrunk(sum0, by));
  store(out, slice, column + 16u, query, num_queries, shrunk(sum1, by));
  store(out, slice, column + 32u, query, num_queries, shrunk(sum2, by));
  store(out, slice, column + 48u, query, num_queries, shrunk(sum3, by));
}
