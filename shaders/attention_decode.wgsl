// attention_decode: one query token a row against its KV blocks, the context divided over splits
//
// q       [T, num_heads, HEAD_DIM] f32; row r's query is token r
// k_cache, v_cache  [num_slots, num_kv_heads, HEAD_DIM / 2] u32: pairs of f16
// block_tables [rows, table_width] i32     context_lens [rows] i32, the query's own key included
// count   [1] u32: decode rows     params.window 0: no window
// split_sums [rows, num_heads, splits, HEAD_DIM + KV_DIMS] f32, out: sum of weighted values, then max and sum of weights
// y       [T, num_heads, HEAD_DIM] f32, out: written here when one split is in use, else by attention_decode_merge
// grid    (splits, num_kv_heads * ceil(group / 4), rows); a workgroup serves four query heads of one kv head
// HEAD_DIM, WG (lanes, and keys a tile; HEAD_DIM / KV_DIMS <= WG): const     kv: kv_wide or kv_narrow
//
// A lane scores one key for all four heads (no reduction), then takes one Kv of dims of a few keys' values.
// Four heads are a vec4 and the columns of a matrix, so nothing relies on the compiler unrolling arrays.
struct Params {
  num_heads: u32, num_kv_heads: u32, block_size: u32, table_width: u32, window: u32, splits: u32, scale: f32
}
@group(0) @binding(0) var<storage, read> q: array<Kv>;
@group(0) @binding(1) var<storage, read> k_cache: array<KvWord>;
@group(0) @binding(2) var<storage, read> v_cache: array<KvWord>;
@group(0) @binding(3) var<storage, read> block_tables: array<i32>;
@group(0) @binding(4) var<storage, read> context_lens: array<i32>;
@group(0) @binding(5) var<storage, read> count: array<u32>;
@group(0) @binding(6) var<storage, read_write> split_sums: array<Kv>;
@group(0) @binding(7) var<storage, read_write> y: array<Kv>;
@group(0) @binding(8) var<uniform> params: Params;
#include "include/${kv}.wgsl"
#include "include/splits.wgsl"

const WORDS = HEAD_DIM / KV_DIMS;
const STEPS = (WORDS + 3u) / 4u; // keys are read four words at a time
const KEY_GROUPS = WG / WORDS; // lanes that share a word's dims, each with other keys
const PARTS = 16u; // partial results in a reduction over keys
const NEG_LARGE = -3.0e38;
var<workgroup> query: array<KvFour, STEPS * 4u>; // columns: heads
var<workgroup> weights: array<vec4<f32>, WG>; // scores, then weights, of the tile's keys
var<workgroup> parts: array<vec4<f32>, PARTS>;
var<workgroup> rows_of: array<u32, WG>; // each key's first word in the caches
var<workgroup> sums: array<KvFour, WG>;

fn scores_of(key_row: u32) -> vec4<f32> {
  var score = vec4<f32>();
  for (var i = 0u; i < STEPS; i++) {
    let w = 4u * i; // words past the head are read from its last and meet zeros of the query
    let k0 = k_cache[key_row + w];
    let k1 = k_cache[key_row + min(w + 1u, WORDS - 1u)];
    let k2 = k_cache[key_row + min(w + 2u, WORDS - 1u)];
    let k3 = k_cache[key_row + min(w + 3u, WORDS - 1u)];
    score += kv_unpack(k0) * query[w] + kv_unpack(k1) * query[w + 1u];
    score += kv_unpack(k2) * query[w + 2u] + kv_unpack(k3) * query[w + 3u];
  }
  return score;
}

@compute @workgroup_size(WG)
fn attention_decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.z;
  if (row >= count[0]) { return; }
  let share = share_of(group.x, u32(context_lens[row]));
  if (group.x >= share.live) { return; }

  let heads_each = params.num_heads / params.num_kv_heads;
  let kv_head = group.y % params.num_kv_heads;
  let first = group.y / params.num_kv_heads * 4u; // within the kv head's query heads
  let first_head = kv_head * heads_each + first;
  let num_heads = min(4u, heads_each - first);
  for (var i = lane; i < STEPS * 16u; i += WG) {
    let w = i / 4u;
    let column = i % 4u;
    var value = Kv();
    if (w < WORDS && column < num_heads) {
      value = q[(row * params.num_heads + first_head + column) * WORDS + w] * params.scale;
    }
    query[w][column] = value;
  }

  let word = lane % WORDS;
  let key_group = lane / WORDS;
  var sum = KvFour();
  var most = vec4<f32>(NEG_LARGE);
  var total = vec4<f32>(); // of this lane's keys
  for (var tile = share.begin; tile < share.end; tile += WG) {
    let num_keys = min(WG, share.end - tile);
    let position = tile + min(lane, num_keys - 1u);
    let block = block_tables[row * params.table_width + position / params.block_size];
    let slot = u32(block) * params.block_size + position % params.block_size;
    let key_row = (slot * params.num_kv_heads + kv_head) * WORDS;
    rows_of[lane] = key_row;
    workgroupBarrier(); // the query is there; the last tile's values are read
    var score = vec4<f32>(NEG_LARGE);
    if (lane < num_keys) { score = scores_of(key_row); }
    weights[lane] = score;
    workgroupBarrier();
    if (lane < PARTS) {
      var part = vec4<f32>(NEG_LARGE);
      for (var i = lane; i < WG; i += PARTS) { part = max(part, weights[i]); }
      parts[lane] = part;
    }
    workgroupBarrier();
    var now = most;
    for (var i = 0u; i < PARTS; i++) { now = max(now, parts[i]); }
    let shrink = exp(most - now);
    most = now;
    let weight = select(vec4<f32>(), exp(score - most), lane < num_keys);
    weights[lane] = weight;
    total = total * shrink + weight;
    sum = KvFour(sum[0] * shrink.x, sum[1] * shrink.y, sum[2] * shrink.z, sum[3] * shrink.w);
    workgroupBarrier();
    if (key_group < KEY_GROUPS) {
      for (var key = 4u * key_group; key < num_keys; key += 4u * KEY_GROUPS) {
        let values = KvFour(
          kv_unpack(v_cache[rows_of[key] + word]), kv_unpack(v_cache[rows_of[key + 1u] + word]),
          kv_unpack(v_cache[rows_of[key + 2u] + word]), kv_unpack(v_cache[rows_of[key + 3u] + word]));
        sum += values * transpose(mat4x4<f32>(
          weights[key], weights[key + 1u], weights[key + 2u], weights[key + 3u]));
      }
    }
    workgroupBarrier();
  }

  sums[lane] = sum;
  weights[lane] = total;
  workgroupBarrier();
  if (lane < PARTS) {
    var part = vec4<f32>();
    for (var i = lane; i < WG; i += PARTS) { part += weights[i]; }
    parts[lane] = part;
  }
  workgroupBarrier();
  var total_all = vec4<f32>();
  for (var i = 0u; i < PARTS; i++) { total_all += parts[i]; }
  for (var i = lane; i < num_heads * WORDS; i += WG) {
    let column = i / WORDS;
    let w = i % WORDS;
    var value = Kv();
    for (var g = 0u; g < KEY_GROUPS; g++) { value += sums[g * WORDS + w][column]; }
    let head_row = row * params.num_heads + first_head + column;
    if (share.live == 1u) {
      y[head_row * WORDS + w] = value / total_all[column];
    } else {
      let entry = (head_row * params.splits + group.x) * (WORDS + 1u);
      split_sums[entry + w] = value;
      if (w == 0u) {
        var state = Kv();
        state.x = most[column];
        state.y = total_all[column];
        split_sums[entry + WORDS] = state;
      }
    }
  }
}
